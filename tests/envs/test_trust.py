"""Which ids and options of environments name code."""

import pytest

from jaxrl.envs.trust import code_named_by

pytestmark = pytest.mark.smoke
OWN = "gymnasium/jaxrl.envs.external_simulators"


@pytest.mark.parametrize(
    ("id", "options", "found"),
    [
        ("gymnasium/os:system", {"command": "x"}, "imports the module 'os'"),
        ("os:system", {}, "imports the module 'os'"),
        ("gymnasium/module:Name-v0", {}, "imports the module 'module'"),
        ("gymnasium/ALE/os:system", {}, "imports the module 'ALE/os'"),
        ("gymnax/module:", {}, "imports the module"),
        (f"{OWN}:convert_space", {}, "imports the module 'jaxrl.envs.external_simulators'"),
        (f"{OWN}:deepmind_lab:x", {}, "imports the module"),
        (f"{OWN}:deepmind_lab", {"level": "/tmp/x"}, "its option level names, '/tmp/x'"),
        (f"{OWN}:deepmind_lab", {"level": "../x"}, "option level"),
        (f"{OWN}:deepmind_lab", {"level": "x.lua"}, "option level"),
        ("GymV21Environment-v0", {"env_id": "m:Name-v0"}, "option env_id names, 'm:Name-v0'"),
        ("gymnasium/GymV26Environment-v0", {"env_id": "m:Name-v0"}, "option env_id"),
        ("envpool/D1Basic-v1", {"vzd_path": "/tmp/x"}, "options name, {'vzd_path': '/tmp/x'}"),
        ("envpool/D1Basic-v1", {"base_path": "/tmp/x"}, "{'base_path': '/tmp/x'}"),
        ("envpool/D1Basic-v1", {"game_args": "+exec x", "num_threads": 2}, "{'game_args'"),
    ],
)
def test_code_that_an_environment_names_is_found(id, options, found):
    assert found in str(code_named_by(id, options))


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("gymnax/CartPole-v1", {"max_steps_in_episode": 10}),
        ("envpool/D1Basic-v1", {"num_threads": 2}),
        ("gymnasium/ALE/Pong-v5", {"episodic_life": True}),
        (f"{OWN}:deepmind_lab", {"level": "contributed/dmlab30/rooms_watermaze"}),
        (f"{OWN}:habitat", {"config": "benchmark/nav/pointnav/pointnav_gibson.yaml"}),
        (f"{OWN}:house3d", {"houses": ("id",)}),
    ],
)
def test_installed_simulators_need_no_trust(id, options):
    assert code_named_by(id, options) is None
