"""Choice among the deployments of a LiteLLM proxy, by the prompts that the engine behind each has cached.

`Picker` is a callback for the proxy's `config.yaml`. kvatlas does not install LiteLLM: the proxy has it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvatlas.litellm.picker import Picker

__all__ = ["Picker"]


def __getattr__(name: str) -> Any:
    if name == "Picker":
        from kvatlas.litellm.picker import Picker  # noqa: PLC0415 - it needs LiteLLM, which the other parts do not

        return Picker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
