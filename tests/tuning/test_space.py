"""Search spaces: distributions against their definitions, refusals by name."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.tuning.spaces import space as spaces
from jaxrl.tuning.spaces.distributions import Choice, Integer, LogUniform, QLogUniform, Uniform
from jaxrl.tuning.spaces.space import When


def draws(distribution, count=4000):
    keys = jax.random.split(jax.random.key(0), count)
    return np.asarray(jax.jit(jax.vmap(distribution.draw))(keys))


def test_real_numbers_are_uniform_or_uniform_in_their_logarithm():
    x = draws(Uniform(-1.0, 3.0))
    assert x.min() >= -1
    assert x.max() <= 3
    np.testing.assert_allclose(np.quantile(x, [0.25, 0.5, 0.75]), [0, 1, 2], atol=0.1)
    x = draws(LogUniform(1e-5, 1e-2))
    assert x.min() >= np.float32(1e-5)
    assert x.max() <= np.float32(1e-2)
    np.testing.assert_allclose(np.quantile(np.log10(x), [1 / 3, 2 / 3]), [-4, -3], atol=0.08)
    for kind in (Uniform, LogUniform):  # bounds beyond 32 bits
        x = draws(kind(1, 2**40), 100)
        assert x.min() >= 1
        assert x.max() <= 2**40


def test_integers_include_both_ends_equally():
    counts = np.bincount(draws(Integer(1, 4)), minlength=5)[1:]
    np.testing.assert_allclose(counts / counts.sum(), 0.25, atol=0.03)


def test_t_max_is_uniform_in_its_logarithm_over_multiples_of_q():
    x = draws(QLogUniform(2, 100))
    assert set(x) <= set(range(2, 101))
    assert np.mean(x <= np.sqrt(2 * 100)) == pytest.approx(0.5, abs=0.04)
    assert set(draws(QLogUniform(4, 64, q=4))) <= set(range(4, 65, 4))


def test_a_ladder_bounds_the_number_of_values():
    ladder = QLogUniform(2, 100, rungs=10)
    assert ladder.ladder == (2, 3, 5, 7, 11, 18, 27, 42, 65, 100)
    assert set(draws(ladder)) == set(ladder.ladder)


@pytest.mark.parametrize(
    ("distribution", "drawn", "down", "up"),
    [
        (Uniform(0.0, 1.0), 0.5, 0.4, 0.6),
        (Uniform(0.0, 1.0), 0.9, 0.72, 1.0),
        (LogUniform(1e-3, 1e-1), 1e-3, 1e-3, 1.2e-3),
        (Integer(1, 100), 50, 40, 60),
        (Integer(1, 100), 2, 1, 3),
        (Integer(-9, 9), -5, -4, -6),
        (Integer(1, 2_000_000_000), 1_900_000_000, 1_520_000_000, 2_000_000_000),
        (Integer(-(2**31), 2**31 - 2), -2_000_000_000, -1_600_000_000, -(2**31)),
        (QLogUniform(4, 64, q=4), 8, 4, 12),
        (QLogUniform(1, 2_000_000_000), 1_900_000_000, 1_520_000_000, 2_000_000_000),
        (QLogUniform(4, 64, q=4), 40, 32, 48),
        (QLogUniform(2, 100, rungs=10), 11, 7, 18),
        (Choice((0.99, 0.9, 0.999)), 0.99, 0.9, 0.999),
        (Choice((0.99, 0.9, 0.999)), 0.999, 0.99, 0.999),
        (Choice(("a", "b", "c")), 1, 0, 2),
        (Choice((1, 2, 2, 3)), 2, 1, 3),
    ],
)
def test_values_move_by_a_factor_or_to_the_next_one_within_the_bounds(
    distribution, drawn, down, up
):
    for factor, expected in ((0.8, down), (1.2, up)):
        moved = jax.jit(distribution.move)(jnp.asarray(drawn), factor)
        np.testing.assert_allclose(moved, expected, rtol=1e-6)


@settings(deadline=None, max_examples=100)
@given(
    bounds=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2, unique=True).map(sorted),
    place=st.floats(0, 1),
    factor=st.floats(0.5, 2),
)
@example(bounds=[0.9999, 0.99999], place=0.5, factor=1.0)
@example(bounds=[1e-5, 1e-2], place=0.5, factor=0.5)
def test_plain_values_are_within_the_bounds_and_train_as_they_were_drawn(bounds, place, factor):
    low, high = bounds
    for distribution in (Uniform(low, high), LogUniform(low, high)):
        drawn = distribution.at(jnp.array([0.0, place, 1.0]))
        for each in (*drawn, *distribution.move(drawn, jnp.float32(factor))):
            assert low <= distribution.value(each) <= high
            assert np.float32(distribution.value(each)) == each


@settings(deadline=None, max_examples=50)
@given(
    rungs=st.none() | st.integers(2, 9),
    q=st.integers(1, 5),
    low=st.integers(1, 9),
    more=st.integers(1, 99),
    place=st.floats(0, 1),
)
def test_plain_values_of_multiples_are_on_the_ladder(rungs, q, low, more, place):
    distribution = QLogUniform(low * q, (low + more) * q, q, rungs)
    drawn = distribution.at(jnp.array([0.0, place, 1.0]))
    values = spaces.values(
        {"a": Choice((1, 2)), "b": When("a", 1, distribution)}, {"a": 1, "b": drawn[1]}
    )
    assert {*map(distribution.value, drawn), values["b"]} <= {*distribution.ladder}


@pytest.mark.parametrize(
    ("distribution", "places", "expected"),
    [
        (Uniform(-1.0, 3.0), [0.0, 0.25, 1.0], [-1.0, 0.0, 3.0]),
        (LogUniform(1e-4, 1e-1), [0.0, 1 / 3, 1.0], [1e-4, 1e-3, 1e-1]),
        (Integer(1, 4), [0.0, 0.24, 0.26, 0.99, 1.0], [1, 1, 2, 4, 4]),
        (Integer(-(2**31), 2**31 - 2), [0.0, 0.5, 1.0], [-(2**31), 0, 2**31 - 2]),
        (QLogUniform(4, 64, q=4), [0.0, 0.5, 1.0], [4, 16, 64]),
        (QLogUniform(2, 100, rungs=10), [0.0, 0.45, 1.0], [2, 11, 100]),
        (Choice((0.99, 0.9, 0.999)), [0.0, 0.4, 0.7, 1.0], [0.9, 0.99, 0.999, 0.999]),
        (Choice((4, 2)), [0.49, 0.51], [2, 4]),
        (Choice((1.0, math.inf)), [0.2, 0.9], [1.0, math.inf]),
        (Choice(("b", "a")), [0.2, 0.9], [0, 1]),
    ],
)
def test_values_have_places_in_the_unit_interval(distribution, places, expected):
    found = jax.jit(distribution.at)(jnp.array(places))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == jax.eval_shape(distribution.draw, jax.random.key(0)).dtype
    unit = np.asarray(jax.jit(distribution.unit)(found))
    assert ((unit >= 0) & (unit <= 1)).all()
    back = jax.jit(distribution.at)(unit)
    np.testing.assert_allclose(back, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "distribution",
    [
        Uniform(-1, 3),
        LogUniform(1e-5, 1e-2),
        Integer(1, 9),
        QLogUniform(2, 100),
        QLogUniform(2, 64, rungs=4),
        Choice((0.99, 0.9, 0.999)),
    ],
    ids=str,
)
def test_values_at_uniform_places_are_distributed_as_drawn(distribution):
    u = jax.random.uniform(jax.random.key(2), (4000,))
    found = np.sort(np.asarray(jax.jit(distribution.at)(u)).astype(float))
    drawn = np.sort(draws(distribution).astype(float))
    grid = np.unique(np.concatenate([found, drawn]))
    gap = np.searchsorted(found, grid, "right") - np.searchsorted(drawn, grid, "right")
    assert np.abs(gap).max() / 4000 < 0.05  # Kolmogorov-Smirnov; 0.036 at a level of 1%


def test_a_key_draws_what_it_always_drew():
    """Stored sweeps and records depend on these values."""
    key = jax.random.key(11)
    expected = {
        Uniform(-1.0, 3.0): -0.16086912155151367,
        LogUniform(1e-5, 1e-2): 4.259396519046277e-05,
        Integer(1, 1000): 142.0,
        QLogUniform(2, 1000): 7.0,
        QLogUniform(2, 100, rungs=10): 5.0,
        Choice((0.9, 0.99, 0.999)): 0.9990000128746033,
    }
    for distribution, value in expected.items():
        np.testing.assert_allclose(jax.jit(distribution.draw)(key), value, rtol=1e-6)


def test_choices_are_equally_likely_and_need_not_be_numbers():
    gammas = Choice((0.9, 0.99, 0.999))
    found = {gammas.value(x) for x in draws(gammas)}
    assert found == {0.9, 0.99, 0.999}
    cores = Choice((None, "lstm"))
    counts = np.bincount(draws(cores))
    np.testing.assert_allclose(counts / counts.sum(), 0.5, atol=0.04)
    assert {cores.value(x) for x in draws(cores)} == {None, "lstm"}


def test_integers_beyond_32_bits_may_be_chosen():
    large = Choice((1, 10**30))
    assert {large.value(x) for x in draws(large, 20)} == {1, 10**30}


def test_infinity_may_be_chosen():
    bounds = Choice((0.5, math.inf))
    assert [bounds.value(np.float32(x)) for x in bounds.values] == [0.5, math.inf]


def test_a_trials_values_depend_on_its_key_alone():
    key = jax.random.key(3)
    space = {"gamma": Uniform(0.9, 1.0), "learning_rate": LogUniform(1e-5, 1e-2)}
    other_order = dict(reversed(space.items()))
    a = spaces.draw(space, key)
    b = jax.jit(lambda key: spaces.draw(other_order, key))(key)
    assert a.keys() == b.keys()
    assert all(jnp.array_equal(a[name], b[name]) for name in a)


def test_static_names_are_those_that_change_the_program():
    space = dict(spaces.GA3C_SPACE) | {"num_envs": Choice((8, 16))}
    assert spaces.static_names(space, jaxrl.A2CConfig) == ("num_envs", "num_steps")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"learning_rat": Uniform(0, 1)}, r"A2CConfig has no fields \['learning_rat'\]"),
        ({"gamma": Uniform(0.5, 1.5)}, r"A2CConfig.gamma must be within \[0, 1\], got 1.5"),
        ({"gamma": Uniform(0.9, 1.5)}, r"got 1\.1; 1\.1\d* is a value of Uniform\(low=0\.9, high="),
        ({"num_steps": Uniform(1.0, 9.0)}, "A2CConfig.num_steps must be an integer"),
        ({"num_steps": Uniform(1, 9)}, "A2CConfig.num_steps must be an integer"),
        ({"num_steps": LogUniform(1, 9)}, "A2CConfig.num_steps must be an integer"),
        ({"final_entropy_coef": Uniform(0, 1)}, "after anneal_updates, which is 0; set both"),
        ({"num_envs": Choice((0, 4))}, "num_envs must be an integer >= 1, got 0"),
        ({"final_entropy_coef": Choice((None, 0.1))}, "final_entropy_coef is traced, so all its"),
    ],
)
def test_a_space_that_the_config_refuses_is_refused(space, message):
    with pytest.raises(ValueError, match=message):
        spaces.check(space, jaxrl.A2CConfig())


def test_fields_are_checked_together():
    both = {"final_entropy_coef": Uniform(0, 1), "anneal_updates": Integer(1, 9)}
    spaces.check(both, jaxrl.A2CConfig())


def test_the_values_of_a_static_field_can_be_counted():
    assert spaces.possible(Choice(("a", "b"))) == ("a", "b")
    assert spaces.possible(Integer(2, 4)) == (2, 3, 4)
    assert spaces.possible(QLogUniform(2, 8, q=2)) == (2, 4, 6, 8)
    with pytest.raises(ValueError, match="has infinitely many values"):
        spaces.possible(Uniform(0, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(1.0, 1.0),
        lambda: Uniform(0.0, 1e39),
        lambda: LogUniform(0.0, 1.0),
        lambda: LogUniform(1e-50, 1.0),
        lambda: QLogUniform(3, 10, q=2),
        lambda: QLogUniform(2, 10, rungs=1),
        lambda: QLogUniform(2, 10, rungs=2.5),  # pyrefly: ignore[bad-argument-type]
        lambda: Integer(0, 2**31 - 1),
        lambda: Choice(()),
        lambda: Choice(("tanh", ["relu"])),
    ],
)
def test_impossible_distributions_are_refused(make):
    with pytest.raises(ValueError, match=r"low|high|multiples|rungs|tuple"):
        make()


CONDITIONAL = {
    "gamma": Choice((0.99, 0.9)),
    "learning_rate": When("gamma", 0.9, LogUniform(1e-4, 1e-2)),
}


def test_conditional_fields_draw_as_others_and_count_where_they_are_active():
    keys = jax.random.split(jax.random.key(3), 400)
    drawn, plain = (
        jax.jit(jax.vmap(partial(spaces.draw, space)))(keys)
        for space in (CONDITIONAL, spaces.unconditional(CONDITIONAL))
    )
    np.testing.assert_array_equal(drawn["learning_rate"], plain["learning_rate"])
    config = jaxrl.PPOConfig(learning_rate=0.5)
    trained = jax.jit(lambda drawn: spaces.trained(CONDITIONAL, drawn, config))(drawn)
    is_active = np.asarray(drawn["gamma"]) == np.float32(0.9)
    np.testing.assert_array_equal(
        trained["learning_rate"], np.where(is_active, drawn["learning_rate"], 0.5)
    )
    assert is_active.mean() == pytest.approx(0.5, abs=0.1)
    places = np.asarray(jax.jit(partial(spaces.places, CONDITIONAL))(drawn))
    np.testing.assert_array_equal(places[:, 1] == 0.5, ~is_active)
    back = jax.jit(partial(spaces.at, CONDITIONAL))(places)
    np.testing.assert_array_equal(back["gamma"], drawn["gamma"])
    np.testing.assert_allclose(
        back["learning_rate"][is_active], drawn["learning_rate"][is_active], rtol=1e-5
    )


def test_plain_values_of_inactive_fields_can_be_left_out():
    for gamma, names in ((0.9, {"gamma", "learning_rate"}), (0.99, {"gamma"})):
        values = {"gamma": gamma, "learning_rate": 1e-3}
        assert set(spaces.without_inactive(CONDITIONAL, values)) == names
    assert spaces.without_inactive(CONDITIONAL, {"learning_rate": 1.0}) == {"learning_rate": 1.0}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": When("b", 1, Uniform(0, 1))}, r"space\['a'\] depends on 'b', .* 'b': None"),
        (
            {"b": Integer(1, 2), "a": When("b", 1, Uniform(0, 1))},
            r"depends on 'b', which must be searched by a Choice that has the value 1; .*Integer",
        ),
        ({"b": Choice((2, 3)), "a": When("b", 1, Uniform(0, 1))}, "has the value 1; the space"),
        (
            {"c": Choice((1,)), "b": When("c", 1, Choice((1,))), "a": When("b", 1, Uniform(0, 1))},
            "depends on 'b', which must be searched by a Choice",
        ),
    ],
)
def test_bad_conditions_are_refused_by_name(space, message):
    with pytest.raises(ValueError, match=message):
        spaces.check_distributions(space)


def test_a_traced_field_without_a_number_in_the_config_has_no_condition():
    part = Uniform(0.01, 0.1)
    conditional = {"gamma": Choice((0.9, 0.99)), "target_kl": When("gamma", 0.9, part)}
    with pytest.raises(ValueError, match=r"target_kl is None in the config, .* without When"):
        spaces.check(conditional, jaxrl.PPOConfig())
    spaces.check(conditional, jaxrl.PPOConfig(target_kl=0.05))
    spaces.check({"target_kl": part}, jaxrl.PPOConfig())


def test_values_of_a_conditional_field_are_checked_where_it_is_active():
    """PPO's minibatches must divide the environments' steps."""
    base = jaxrl.PPOConfig(core="gru")
    spaces.check(
        {"core": Choice((None, "gru")), "core_size": When("core", "gru", Integer(1, 2))}, base
    )
    with pytest.raises(ValueError, match="core_size"):
        spaces.check(
            {"core": Choice((None, "gru")), "core_size": When("core", "gru", Integer(0, 2))}, base
        )
    assert spaces.possible(When("core", "gru", Integer(1, 2))) == (1, 2)


def test_numbers_of_a_choice_have_one_type():
    """So agents of one search with different values share a program."""
    assert [*map(type, Choice((0, 0.01)).values)] == [float, float]
    assert [*map(type, Choice((1, 2)).values)] == [int, int]
    assert Choice((1, "a", 0.5, True)).values == (1, "a", 0.5, True)
