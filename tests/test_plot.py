"""Curves from training logs."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "plot.py"
sys.path.insert(0, str(SCRIPT.parent))
spec = importlib.util.spec_from_file_location("plot_script", SCRIPT)
plot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plot)

SIMPLE = """2026-01-01 10:00:00 | INFO | train_inner | epoch 001:   100 / 200 loss=8.7, ppl=422.7, num_updates=100, lr=1
2026-01-01 10:01:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 7.6 | ppl 194.0 | num_updates 200
2026-01-01 10:01:00 | INFO | train | epoch 001 | loss 8.5 | ppl 362.0 | num_updates 200 | lr 1
2026-01-01 10:02:00 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 7.3 | ppl 157.6 | num_updates 400 | best_loss 7.3
2026-01-01 10:03:00 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 7.2 | ppl 147.0 | num_updates 400 | best_loss 7.2
"""  # noqa: E501
AS_JSON = '… | INFO | valid | {"epoch": 1, "valid_loss": "2.5", "valid_bpc": "2.5", "valid_num_updates": "30"}\n'


def test_simple_logs():
    assert plot.validations(SIMPLE, "valid", "ppl") == [(200, 194.0), (400, 147.0)]
    assert plot.validations(SIMPLE, "train", "loss") == [(200, 8.5)]
    assert plot.validations(SIMPLE, "test", "ppl") == []


def test_json_logs():
    assert plot.validations(AS_JSON, "valid", "bpc") == [(30, 2.5)]


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(ending, start, tmp_path, capsys):
    (tmp_path / "gru.log").write_text(SIMPLE)
    (tmp_path / "rntn.log").write_text(SIMPLE.replace("147.0", "120.5"))
    out = tmp_path / f"curves.{ending}"
    plot.main([str(tmp_path / "gru.log"), str(tmp_path / "rntn.log"), "--out", str(out)])
    assert out.read_bytes().startswith(start)
    assert "best ppl 120.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    "metric, values, best",
    [
        ("label_accuracy", (50.0, 90.0, 80.0), "best label_accuracy 90"),
        ("las", (50.0, 90.0), "best las 90"),
        ("uas", (50.0, 90.0), "best uas 90"),
        ("bleu", (50.0, 90.0), "best bleu 90"),
        ("ppl", ("nan", 90.0, 95.0), "best ppl 90"),
        ("ppl", ("nan",), "best ppl nan"),
    ],
)
def test_best(metric, values, best, tmp_path, capsys):
    line = "x | INFO | valid | epoch 001 | valid on 'valid' subset | {} {} | num_updates {}\n"
    log = tmp_path / "x.log"
    log.write_text("".join(line.format(metric, value, place) for place, value in enumerate(values, 1)))
    plot.main([str(log), "--metric", metric, "--out", str(tmp_path / "x.png")])
    assert capsys.readouterr().out.splitlines()[0].endswith(best)


def test_errors(tmp_path, capsys):
    log = tmp_path / "x.log"
    log.write_text(SIMPLE)
    bad, garbled = tmp_path / "bad.log", tmp_path / "garbled.log"
    bad.write_text("x | valid | epoch 001 | ppl abc | num_updates 5\n")
    garbled.write_text("x | valid | {oops}\n")
    endless = tmp_path / "endless.log"
    endless.write_text('x | valid | {"valid_num_updates": Infinity, "valid_ppl": 3}\n')
    for arguments, message in (
        ([str(tmp_path / "no.log")], "No such file"),
        ([str(log), "--metric", "uas"], "no validation on 'valid' with 'uas' in this log"),
        ([str(log), "--out", "curves.xyz"], "--out curves.xyz must end with one of .png, .svg, .pdf"),
        ([str(log), "--out", str(tmp_path / "no" / "x.png")], "there is no folder"),
        ([str(bad)], "bad.log: line 1: num_updates '5', ppl 'abc': no numbers"),
        ([str(endless)], "endless.log: line 1: num_updates inf, ppl 3: no numbers"),
        ([str(garbled)], "garbled.log: line 1: a validation that is no JSON"),
    ):
        with pytest.raises(SystemExit):
            plot.main(arguments)
        assert message in capsys.readouterr().err


def test_logs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    logs = [str(tmp_path / name / "train.log") for name in ("a", "b")]
    assert plot.names_of(logs) == ["a", "b"]
    assert plot.names_of([*logs, logs[0]]) == [*logs, logs[0]]
    assert plot.names_of(["x/gru.log", "x/lstm.log"]) == ["gru", "lstm"]
