"""`make` finds environments by id, and refuses what is wrong by name."""

import importlib.util
from typing import Any

import pytest

import jaxrl
from jaxrl.envs import gymnasium as adapter


def test_a_bare_id_is_searched_in_gymnax_then_envpool():
    assert jaxrl.make("CartPole-v1", 3).id == "gymnax/CartPole-v1"
    assert jaxrl.make("FrozenLake-v1", 3).id == "envpool/FrozenLake-v1"
    assert jaxrl.make("envpool/CartPole-v1", 3).id == "envpool/CartPole-v1"
    with pytest.raises(ValueError, match="among gymnax;"):
        jaxrl.make("gymnax/FrozenLake-v1", 3)


@pytest.mark.parametrize(
    ("id", "near"),
    [
        ("CartPol-v1", "gymnax/CartPole-v1.* of your module: 'gymnasium/your_module:CartPol-v1'"),
        ("envpool/Pnog-v5", "envpool/Pong-v5"),
        ("probe/Constant", "probe/Constant-v0"),
        ("#####", "no id comes near it"),
    ],
)
def test_an_unknown_id_is_refused_with_near_matches(id, near):
    with pytest.raises(ValueError, match=f"unknown environment id '{id}'.*{near}"):
        jaxrl.make(id, 3)


def test_environments_in_place_of_an_id_are_told_where_they_go():
    env: Any = jaxrl.make("CartPole-v1", 2)
    with pytest.raises(ValueError, match=r"got environments, .*: give them .* jaxrl.ppo\(env\)"):
        jaxrl.make(env, 2)


def test_ids_of_a_backend_that_is_absent_are_left_out_by_name(monkeypatch):
    def absent():
        raise ImportError("libEGL.so.1 is missing")

    monkeypatch.setattr("jaxrl.envs.envpool.ids", absent)
    with pytest.warns(UserWarning, match=r"no ids of envpool: libEGL\.so\.1 is missing"):
        found = jaxrl.envs.ids()
    assert "gymnax/CartPole-v1" in found
    assert not [id for id in found if id.startswith("envpool/")]


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, True, "2", None])
def test_a_bad_number_of_environments_is_refused(num_envs):
    with pytest.raises(ValueError, match="num_envs must be an integer >= 1"):
        jaxrl.make("CartPole-v1", num_envs)


@pytest.mark.parametrize(
    "id",
    ["gymnax/CartPole-v1", "envpool/CartPole-v1", "maze/FindAndReturn-v0", "probe/Constant-v0"],
)
def test_an_unknown_option_is_refused_by_name(id):
    with pytest.raises(ValueError, match=f"{id}.*colour"):
        jaxrl.make(id, 3, colour="red")
    with pytest.raises(ValueError, match=r"option colour={'red'} of .* must be hashable"):
        jaxrl.make(id, 3, colour={"red"})


def test_an_atari_game_without_its_package_names_that(monkeypatch):
    monkeypatch.setattr(adapter, "ids", lambda: ["Ant-v5"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"gymnasium/ALE/Pong-v5 needs ale-py: pip install"):
        jaxrl.make("gymnasium/ALE/Pong-v5", 1)
