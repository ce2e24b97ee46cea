"""Pictures show the state: shapes move in the picture as they move in the environment."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl.envs import rendering
from jaxrl.envs.gymnax import GymnaxEnv

MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
GRIDS = [*(f"{game}-MinAtar" for game in MINATAR), "Catch-bsuite"]
SIZES = {
    "CartPole-v1": (400, 600, 3),
    "Pendulum-v1": (500, 500, 3),
    "Acrobot-v1": (500, 500, 3),
    "MountainCar-v0": (400, 600, 3),
    "MountainCarContinuous-v0": (400, 600, 3),
}


def picture(name: str, **changes: float) -> np.ndarray:
    """Return the picture of a state of zeros with some fields changed."""
    env = GymnaxEnv(name, 1)
    shapes, _ = jax.eval_shape(env.init, jax.random.key(0))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    changed = {
        field: np.full_like(getattr(state.inner, field), value) for field, value in changes.items()
    }
    return env.render(state._replace(inner=state.inner.replace(**changed)))


def centre(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Mean (x, y) of the pixels of one colour, in pixels from the top left."""
    rows, columns = np.nonzero((image == np.array(colour)).all(-1))
    assert rows.size, f"no pixel has the colour {colour}"
    return np.array([columns.mean(), rows.mean()])


@pytest.mark.parametrize("name", [*SIZES, *GRIDS])
def test_draws_an_rgb_picture_that_is_not_blank(name: str) -> None:
    image = picture(name)
    assert image.dtype == np.uint8
    if name in SIZES:
        assert image.shape == SIZES[name]
    else:
        rows, columns = GymnaxEnv(name, 1).observation_space.shape[:2]
        assert image.shape == (rows * rendering.CELL, columns * rendering.CELL, 3)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize(
    ("name", "field", "direction"),
    [
        ("Asterix-MinAtar", "player_x", (1, 0)),
        ("Breakout-MinAtar", "pos", (1, 0)),
        ("Freeway-MinAtar", "pos", (0, 1)),
        ("Seaquest-MinAtar", "sub_x", (1, 0)),
        ("SpaceInvaders-MinAtar", "pos", (1, 0)),
        ("Catch-bsuite", "paddle_x", (0.5, 0)),  # the ball has the same colour and stays
    ],
)
def test_player_moves_by_a_cell(name: str, field: str, direction: tuple[float, float]) -> None:
    # A car that stands still would leave its trail in the player's channel.
    others = {"cars": 5} if name == "Freeway-MinAtar" else {}
    before, after = (
        centre(picture(name, **others, **{field: cell}), rendering.CHALK) for cell in (2, 3)
    )
    np.testing.assert_allclose(after - before, np.array(direction) * rendering.CELL, atol=0.5)


def test_cart_moves_by_the_distance_it_moved() -> None:
    left, right = (picture("CartPole-v1", x=x, theta=0.0) for x in (-1.0, 1.0))
    moved = centre(right, rendering.SKY) - centre(left, rendering.SKY)
    np.testing.assert_allclose(moved, [2 * 125, 0], atol=0.5)  # 600 pixels show 4.8 units


def test_pole_leans_to_the_side_of_its_angle() -> None:
    left, up, right = (picture("CartPole-v1", x=0.0, theta=a) for a in (-0.2, 0.0, 0.2))
    x, y = zip(*(centre(image, rendering.AMBER) for image in (left, up, right)), strict=True)
    assert x[0] < x[1] - 5 < x[2] - 10
    assert y[1] < y[0] == pytest.approx(y[2], abs=1)


def test_pendulum_swings_counterclockwise_from_the_top() -> None:
    up, left = (picture("Pendulum-v1", theta=angle) for angle in (0.0, np.pi / 2))
    np.testing.assert_allclose(centre(up, rendering.CORAL), [249.5, 150], atol=5)
    np.testing.assert_allclose(centre(left, rendering.CORAL), [150, 249.5], atol=5)


def test_pendulum_shows_the_side_and_size_of_its_torque() -> None:
    left, right = (picture("Pendulum-v1", theta=np.pi, last_u=u) for u in (1.0, -1.0))
    assert centre(left, rendering.SKY)[0] < 249.5 < centre(right, rendering.SKY)[0]
    arcs = [picture("Pendulum-v1", theta=np.pi, last_u=u) == rendering.SKY for u in (0, 0.2, 1)]
    none, weak, strong = (arc.all(-1).sum() for arc in arcs)
    assert none < 20 < weak < strong


def test_acrobot_hangs_then_stands_over_its_goal() -> None:
    hanging, standing = (
        picture("Acrobot-v1", joint_angle1=angle, joint_angle2=0.0) for angle in (0.0, np.pi)
    )
    goal = centre(hanging, rendering.MINT)[1]
    assert centre(standing, rendering.AMBER)[1] < goal < centre(hanging, rendering.AMBER)[1]


@pytest.mark.parametrize("name", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_car_drives_up_the_hill(name: str) -> None:
    valley, top = (
        centre(picture(name, position=position), rendering.CORAL) for position in (-0.52, 0.45)
    )
    assert top[0] > valley[0] + 250
    assert top[1] < valley[1] - 250


def test_later_channels_cover_earlier_ones() -> None:
    grid = np.zeros((2, 3, 10))
    grid[0, 1, [0, 9]] = 1
    image = rendering.draw_grid(grid)
    assert image.shape == (2 * rendering.CELL, 3 * rendering.CELL, 3)
    cells = image[rendering.CELL // 2 :: rendering.CELL, rendering.CELL // 2 :: rendering.CELL]
    assert (cells[0, 1] == rendering.CHANNELS[9]).all()
    assert (cells.reshape(-1, 3)[[0, 2, 3, 4, 5]] == rendering.NIGHT).all()


@pytest.mark.parametrize("name", ["MemoryChain-bsuite", "FrozenLake-misc"])
def test_an_environment_without_pictures_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"gymnax/{name} cannot be drawn.*CartPole-v1.*MinAtar"):
        picture(name)
