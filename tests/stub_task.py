"""A task that has nothing but a dictionary, for building models without data."""

from fairseq.data import Dictionary


class StubTask:
    def __init__(self, symbols, fillers: int = 0) -> None:
        self.source_dictionary = Dictionary()
        for symbol in symbols:
            self.source_dictionary.add_symbol(symbol)
        for i in range(fillers):
            self.source_dictionary.add_symbol(f"madeupword{i:04d}", 0)
        self.target_dictionary = self.source_dictionary
        self.cfg = self.args = None


def build(name: str, task, **settings):
    """A registered language model with settings, in evaluation mode and float64."""
    from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    import rntn_plugins  # noqa: F401  (registers the models)

    config = MODEL_DATACLASS_REGISTRY[name]()
    for key, value in settings.items():
        assert hasattr(config, key), key
        setattr(config, key, value)
    return MODEL_REGISTRY[name].build_model(config, task).double().eval()
