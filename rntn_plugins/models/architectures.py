"""Architectures made known to fairseq, whose settings OmegaConf reads when a command asks for them."""

from functools import cached_property

from fairseq.models import MODEL_DATACLASS_REGISTRY, register_model, register_model_architecture
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf


class LateNode(ConfigNode):
    """An architecture's settings as hydra keeps them, read by OmegaConf when a command asks for them."""

    def __init__(self, name: str, settings: type):
        self.name, self.group, self.package, self.provider = f"{name}.yaml", "model", None, "fairseq"
        self.architecture, self.settings = name, settings

    @cached_property  # which hydra may assign to, as it does with what it hands out
    def node(self) -> DictConfig:
        filled = self.settings()
        filled._name = self.architecture
        return OmegaConf.structured(filled)


def register_architecture(name: str, settings: type, model: type) -> type:
    """``fairseq.models.register_model(name, dataclass=settings)(model)``, without its time: there OmegaConf reads the
    settings of each, here of those that a command asks for. Of over 200 it is one or none.

    Raises:
        ValueError: *model* is no model of fairseq's.
    """
    register_model(name)(model)
    setattr(model, "__dataclass", settings)
    MODEL_DATACLASS_REGISTRY[name] = settings
    ConfigStore.instance().repo.setdefault("model", {})[f"{name}.yaml"] = LateNode(name, settings)
    register_model_architecture(name, name)(lambda _: None)
    return model
