"""Dropout that a user can keep where a model only predicts."""

from __future__ import annotations

import logging
from typing import Sequence

from torch import Tensor, nn
from torch.nn import functional

logger = logging.getLogger(__name__)


class Dropout(nn.Dropout):
    """torch's; ``--retain-dropout`` of fairseq's commands keeps it in generation (Gal and Ghahramani 2016).

    ``--retain-dropout-modules A,B`` names what it belongs to, the class of its *owner*; the log has them.
    """

    def __init__(self, p: float, owner: object) -> None:
        super().__init__(p)
        self.owner = type(owner).__name__
        self.retained = False

    def make_generation_fast_(
        self, name: str = "", retain_dropout: bool = False, retain_dropout_modules: Sequence[str] | None = None, **_
    ) -> None:
        """What fairseq tells all parts of a model that is to predict."""
        if isinstance(retain_dropout_modules, str):  # as the command line gives them
            retain_dropout_modules = [part.strip() for part in retain_dropout_modules.split(",")]
        self.retained = retain_dropout and (not retain_dropout_modules or self.owner in retain_dropout_modules)
        if retain_dropout:
            logger.info(f"dropout of {self.owner} ({name}): {'retained' if self.retained else 'off'}")

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.p, self.training or self.retained)
