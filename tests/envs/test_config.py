"""Which class an environment's settings are of."""

from __future__ import annotations

from typing import Any

from hermes.envs.base import BaseEnv
from hermes.envs.config import BaseEnvConfig


class TallConfig(BaseEnvConfig):
    height: int = 3


class WideConfig(BaseEnvConfig):
    width: int = 4


class ByMethod(BaseEnv):
    @classmethod
    def config_cls(cls) -> type:
        return TallConfig

    async def get_next_item(self) -> Any: ...


class ByBoth(ByMethod):
    env_config_cls = WideConfig


def test_settings_named_only_by_a_method_are_found_and_the_attribute_goes_before_it() -> None:
    assert type(ByMethod.config_init()[0]) is TallConfig
    assert type(ByBoth.config_init()[0]) is WideConfig
    assert type(BaseEnv.config_init()[0]) is BaseEnvConfig
