"""Mazes compared with a plain NumPy simulation: levels, rewards, ends and windows."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_cases import member, played

import jaxrl
from jaxrl.envs import maze, rendering
from jaxrl.envs.check import random_actions

ID = "maze/FindAndReturn-v0"
init = jax.jit(maze.MazeEnv.init, static_argnums=0)
make_levels = jax.jit(jax.vmap(maze.make_level, (0, None)), static_argnums=1)


def levels_of(numbers, size=9):
    return jax.tree.map(np.asarray, make_levels(np.asarray(numbers, np.uint32), size))


def distances(walls, start):
    """Return the steps from `start` to each place, by breadth-first search; -1 if unreachable."""
    found = np.full(walls.shape, -1)
    found[tuple(start)] = 0
    queue = deque([tuple(start)])
    while queue:
        place = queue.popleft()
        for ahead in (tuple(np.add(place, move)) for move in maze.MOVES):
            if not walls[ahead] and found[ahead] < 0:
                found[ahead] = found[place] + 1
                queue.append(ahead)
    return found


def shortest_path(walls, start, end):
    """Return the actions of the shortest path."""
    left, place, actions = distances(walls, end), np.array(start), []
    while left[tuple(place)]:
        steps = [left[tuple(place + move)] for move in maze.MOVES]
        actions.append(steps.index(left[tuple(place)] - 1))
        place = place + maze.MOVES[actions[-1]]
    return actions


def see(level, place, view):
    """Return the window around `place`, computed cell by cell."""
    seen = np.zeros((view, view, 2), bool)
    for row, column in np.ndindex(view, view):
        at = (place[0] + row - view // 2, place[1] + column - view // 2)
        inside = all(0 <= x < size for x, size in zip(at, level.walls.shape, strict=True))
        seen[row, column] = not inside or level.walls[at], at == tuple(level.object)
    return seen


@pytest.mark.parametrize("size", [5, 9, 17, 71])
def test_exactly_one_path_connects_any_two_cells(size):
    levels = levels_of(range(100 if size < 70 else 5), size)
    for walls, home, thing in zip(*levels, strict=True):
        reached = distances(walls, home) >= 0
        np.testing.assert_array_equal(reached, ~walls)
        num_cells = (size // 2) ** 2
        assert not walls[1::2, 1::2].any()
        assert reached.sum() == num_cells + (num_cells - 1)  # and a passage for each but the root
        assert reached[tuple(thing)]
        assert (home % 2 == 1).all()
        assert (thing % 2 == 1).all()
        assert tuple(home) != tuple(thing)
        assert walls[[0, -1]].all()
        assert walls[:, [0, -1]].all()


def test_a_level_depends_on_its_number_alone():
    expected = member(levels_of([7]), 0)
    for num_envs, seed in ((1, 0), (1, 1), (3, 2)):
        env = jaxrl.make(ID, num_envs, first_level=7, num_levels=1)
        state, _ = init(env, jax.random.key(seed))
        for row in range(num_envs):
            jax.tree.map(np.testing.assert_array_equal, member(state.level, row), expected)


def test_levels_differ_in_walls_home_and_object():
    for leaf in levels_of(range(200)):
        assert len(np.unique(leaf.reshape(200, -1), axis=0)) >= min(16, 200)
    together = np.concatenate([x.reshape(200, -1) for x in levels_of(range(200))], 1)
    assert len(np.unique(together, axis=0)) == 200


def test_every_wall_of_a_large_maze_is_random():
    size = 129
    walls = np.concatenate([levels_of(range(100), size).walls[..., 1::2, 2:-1:2]])
    differ = (walls != walls[:1]).any(0)
    assert differ.all()


def seen_levels(num_steps=60, **options):
    """Return the levels of many short episodes, each as a tuple of numbers."""
    env = jaxrl.make(ID, 8, max_episode_steps=1, **options)

    @jax.jit
    def run(keys):
        def step(state, key):
            state, _ = env.step(key, state, jnp.zeros(8, jnp.int32))
            return state, state.level

        return jax.lax.scan(step, env.init(keys[0])[0], keys)[1]

    levels = run(jax.random.split(jax.random.key(1), num_steps))
    rows = np.concatenate([np.asarray(x).reshape(8 * num_steps, -1) for x in levels], 1)
    return {tuple(row) for row in rows}


def test_episodes_draw_from_exactly_the_given_levels():
    training = seen_levels(first_level=20, num_levels=5)
    everything = np.concatenate([x.reshape(5, -1) for x in levels_of(range(20, 25))], 1)
    assert training == {tuple(row) for row in everything}
    unseen = seen_levels(first_level=25)
    assert len(unseen) > 200
    assert not training & unseen


def test_traced_level_numbers_equal_the_options():
    limits = [(0, 1), (3, 2), (9, 0)]
    keys = jax.random.split(jax.random.key(0), 3)

    def begin_twice(env, key, start):
        state, before = start(key)
        ended = state._replace(ended=jnp.ones(4, bool))
        return before, env.step(key, ended, jnp.zeros(4, jnp.int32))

    @jax.jit
    def traced(keys, limits):
        env: Any = jaxrl.make(ID, 4)
        return jax.vmap(
            lambda key, first, num: begin_twice(env, key, lambda key: env.start(key, first, num))
        )(keys, *limits)

    population = traced(keys, jnp.array(limits).T)
    for i, (first, num) in enumerate(limits):
        env = jaxrl.make(ID, 4, first_level=first, num_levels=num)
        alone = jax.jit(lambda key, env=env: begin_twice(env, key, env.init))(keys[i])
        jax.tree.map(np.testing.assert_array_equal, member(population, i), alone)


def test_steps_equal_a_plain_simulation():
    """Compare episodes that random steps solve, and episodes that the time limit ends."""
    view, limit = 3, 40
    env = jaxrl.make(ID, 4, size=5, view=view, max_episode_steps=limit, first_level=3, num_levels=1)
    actions = random_actions(env, 0, 300)
    steps = played(env, actions)
    level = member(levels_of([3], 5), 0)
    for n in range(4):
        place, found, time, over = level.home, False, 0, False
        for t, action in enumerate(actions[:, n], start=1):
            reward, terminated, truncated, first = 0.0, False, False, over
            if over:
                place, found, time = level.home, False, 0
            else:
                ahead = place + maze.MOVES[action]
                place = place if level.walls[tuple(ahead)] else ahead
                time += 1
                if found and (place == level.home).all():
                    reward, terminated = 1.0, True
                if not found and (place == level.object).all():
                    reward, found = 1.0, True
                truncated = time == limit and not terminated
            over = terminated or truncated
            shown = [
                x[t, n] for x in (steps.reward, steps.terminated, steps.truncated, steps.first)
            ]
            assert shown == [reward, terminated, truncated, first]
            np.testing.assert_array_equal(steps.obs[t, n], see(level, place, view))
    assert steps.terminated.any()
    assert steps.truncated.any()


def test_the_shortest_path_pays_twice_and_looks_equal_both_ways():
    """Observations must not show whether the object was found."""
    env = jaxrl.make(ID, 1, first_level=6, num_levels=1)
    level = member(levels_of([6]), 0)
    out = shortest_path(level.walls, level.home, level.object)
    back = shortest_path(level.walls, level.object, level.home)
    actions = np.array([*out, *back, 0], np.int32)[:, None]
    steps = jax.tree.map(lambda x: x[:, 0], played(env, actions))
    end = 2 * len(out)
    assert np.flatnonzero(steps.reward).tolist() == [len(out), end]
    assert np.flatnonzero(steps.terminated).tolist() == [end]
    assert not steps.truncated.any()
    assert steps.first[end + 1]
    np.testing.assert_array_equal(steps.obs[: end + 1], steps.obs[: end + 1][::-1])


def test_the_picture_shows_walls_places_and_the_window():
    env = jaxrl.make(ID, 2, first_level=5, num_levels=1, view=3).for_rendering()
    state, _ = init(env, jax.random.key(0))
    level = member(levels_of([5]), 0)
    away = next(
        tuple(place)
        for place in np.argwhere(~level.walls)
        if all(abs(place - other).max() > 1 for other in (level.home, level.object, (1, 1)))
    )
    state = state._replace(position=jnp.array([away]))

    def cell(picture, place):
        row, column = (rendering.CELL * x + rendering.CELL // 2 for x in place)
        return tuple(picture[row, column].tolist())

    picture = env.render(state)
    assert picture.shape == (9 * rendering.CELL, 9 * rendering.CELL, 3)
    assert picture.dtype == np.uint8
    assert cell(picture, away) == rendering.MINT
    assert cell(picture, level.home) == rendering.SKY
    assert cell(picture, level.object) == rendering.AMBER
    assert cell(picture, (0, 0)) == rendering.CHALK
    assert cell(picture, np.add(away, (0, 1))) not in (rendering.CHALK, rendering.NIGHT)
    pale = cell(env.render(state._replace(found=jnp.array([True]))), level.object)
    assert pale not in (rendering.AMBER, rendering.NIGHT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, "size must be an integer >= 5, got 4"),
        ({"size": 8}, "size must be odd, got 8"),
        ({"view": 4}, "view must be odd, got 4"),
        ({"max_episode_steps": 0}, "max_episode_steps must be an integer >= 1, got 0"),
        ({"num_levels": -1}, "num_levels must be an integer >= 0, got -1"),
        ({"num_levels": 1.5}, "num_levels must be an integer >= 0, got 1.5"),
        ({"first_level": 2**31 - 3, "num_levels": 3}, "levels are numbers below 2147483647"),
    ],
)
def test_bad_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=f"{ID} takes the options .*: {message}"):
        jaxrl.make(ID, **options)
