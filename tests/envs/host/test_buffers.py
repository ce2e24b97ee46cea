"""Memory of the compiled program, which the host reads and writes."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from env_cases import N, assert_same, member

import jaxrl
from jaxrl.envs import check
from jaxrl.envs.check import random_actions
from jaxrl.envs.host import callback
from jaxrl.types import PyTree

NUMBER = jax.ShapeDtypeStruct((), np.dtype(np.int32))


@pytest.fixture
def copied(monkeypatch):
    """Call the host as other devices than CPUs do."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))


def texts(function: Callable[..., Any], *args: Any) -> dict[str, str]:
    traced = jax.jit(function).trace(*args)
    platforms = ("cpu", "cuda", "tpu")
    return {name: traced.lower(lowering_platforms=(name,)).as_text() for name in platforms}


def test_only_programs_for_cpus_have_buffers(monkeypatch):
    # JAX lowers `io_callback` for no device that the machine does not have.
    def io_callback(function: Any, shapes: PyTree, *args: jax.Array) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    monkeypatch.setattr(callback, "io_callback", io_callback)
    env = jaxrl.make("envpool/CartPole-v1", N)

    def run(key: jax.Array) -> Any:
        state, _ = env.init(key)
        return env.step(key, state, jnp.zeros(N, jnp.int32))

    for function, key in (
        (run, jax.random.key(0)),
        (jax.vmap(run), jax.random.split(jax.random.key(0))),
    ):
        for platform, text in texts(function, key).items():
            calls = re.findall(r"custom_call @(\w*python\w*)", text)
            assert calls == ["xla_buffer_python_cpu_callback"] * 2 * (platform == "cpu"), platform


def test_programs_for_cpus_have_nothing_else():
    def run(x: jax.Array) -> jax.Array:
        return callback._call_host(lambda x: x, NUMBER, x)

    lowered = jax.jit(run).lower(jnp.int32(0))
    calls = re.findall(r"custom_call @(\w+)", lowered.as_text())
    assert calls == ["xla_buffer_python_cpu_callback"]
    compiled = str(lowered.compile().as_text())
    assert "conditional" not in compiled  # XLA removes the constant branch


def test_both_ways_give_the_same_steps(request):
    env = jaxrl.make("envpool/CartPole-v1", N)
    keys = jax.random.split(jax.random.key(0), 2)
    actions = jnp.asarray(random_actions(env, 1, 2, 20))

    def runs() -> tuple[Any, Any]:
        def play(key: jax.Array, actions: jax.Array) -> Any:  # another function, so traced anew
            return check._play(env, key, actions)[1]

        return jax.jit(play)(keys[0], actions[0]), jax.jit(jax.vmap(play))(keys, actions)

    one, population = runs()
    assert_same(member(population, 0), one)
    request.getfixturevalue("copied")
    for with_copies, with_buffers in zip(runs(), (one, population), strict=True):
        assert_same(with_copies, with_buffers)


@pytest.mark.parametrize("way", ["buffers", "copies"])
def test_arrays_of_every_kind_reach_the_host_and_return(way, request):
    if way == "copies":
        request.getfixturevalue("copied")
    kinds = (bool, np.uint8, np.int8, np.int16, np.int32, np.uint32, np.float16, np.float32)
    arrays = {
        f"{np.dtype(kind)}{list(shape)}": jnp.asarray(
            np.random.default_rng(0).integers(0, 2, shape), kind
        )
        for kind in kinds
        for shape in ((), (0,), (3, 0), (1,), (2, 3, 5))
    }
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)

    def host(*leaves: Any) -> dict[str, np.ndarray]:
        values = (np.asarray(x) for x in leaves)
        return dict(zip(sorted(arrays), values, strict=True))

    returned = jax.jit(lambda x: callback._call_host(host, shapes, *jax.tree.leaves(x)))(arrays)
    assert_same(returned, arrays)


def test_the_host_may_keep_arguments_and_give_views():
    """A later call, in the same memory, changes no argument that was kept."""
    kept: list[np.ndarray] = []
    memory = np.zeros((4, 3), np.int32)

    def host(x: np.ndarray) -> np.ndarray:
        kept.append(x)
        memory[:, 0] = x
        seen = memory[:, 0]  # not contiguous
        seen.flags.writeable = False
        return seen

    shape = jax.ShapeDtypeStruct((4,), np.dtype(np.int32))

    def step(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        y = callback._call_host(host, shape, x)
        return y + 1, y

    last, all_ = jax.jit(lambda x: jax.lax.scan(step, x, None, 5), donate_argnums=0)(
        jnp.zeros(4, jnp.int32)
    )
    expected = np.tile(np.arange(5)[:, None], (1, 4))
    np.testing.assert_array_equal(all_, expected)
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(last, [5] * 4)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"]
)
def test_calls_whose_results_nobody_needs_are_made(transform):
    calls: list[int] = []

    def host(x: Any) -> np.ndarray:
        calls.append(len(np.asarray(x)))
        return np.asarray(x)

    def ask(x: jax.Array) -> jax.Array:
        return callback._call_host(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def run(x: jax.Array) -> jax.Array:
        _, unused = jax.lax.scan(lambda c, _: (c, callback._fold(ask)(x)), 0, None, 3)
        callback._fold(ask)(x)
        del unused
        return x

    jax.block_until_ready(transform(run)(jnp.zeros((2, 1), jnp.int32)))
    jax.effects_barrier()
    assert calls == [2] * 4


@pytest.mark.parametrize(
    "answer", [np.zeros(1, np.int32), np.zeros((), np.int64), np.zeros((), np.float32)]
)
def test_an_answer_of_another_shape_or_dtype_is_refused(answer):
    run = jax.jit(lambda: callback._call_host(lambda: answer, NUMBER))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=rf"must return int32\[\], got {answer.dtype}"
    ):
        jax.block_until_ready(run())
