"""``fairseq-train`` that, told to end by a signal, saves where it is first: the same training goes on from there.

    python scripts/reproduction/stoppable.py DATA ...       # the flags of fairseq-train

fairseq itself loses what it made since its last checkpoint. Nothing is validated then: what it would say could make
another checkpoint the best than in a training that is not interrupted. Before the first update it ends at once.
The exit code is 128 and the signal's number, as shells have it.
"""

import logging
import os
import signal
import sys
from typing import List

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
logger = logging.getLogger("fairseq_cli.train")


def stoppable(train) -> List[int]:
    """Makes *train*, the module ``fairseq_cli.train``, so.

    Returns:
        where the signal will be that stopped it, if one did.
    """
    from fairseq import checkpoint_utils

    usual, asked, stopped = train.validate_and_save, [], []

    def ask(number: int, frame) -> None:
        asked.append(number)

    def validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch):
        for number in SIGNALS:
            if signal.getsignal(number) not in (ask, signal.SIG_IGN):  # not what nohup has to be ignored
                signal.signal(number, ask)
        losses, stops = usual(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        if asked and not stops and not end_of_epoch:  # an epoch's end has more to do, and then the next update comes
            logger.info(f"Stopping training due to {signal.Signals(asked[0]).name}")
            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
            stopped.append(asked[0])
            stops = True
        return losses, stops

    train.validate_and_save = validate_and_save
    return stopped


if __name__ == "__main__":
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != own]  # whose names others may have
    from fairseq_cli import train

    stopped_by = stoppable(train)
    train.cli_main()
    sys.exit(128 + stopped_by[0] if stopped_by else 0)
