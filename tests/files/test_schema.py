"""Damaged and foreign files: whatever a field holds, its reader works or names the file."""

import copy
import json
import math

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_runs import write_run

import jaxrl
from jaxrl.analysis.comparison import group_runs, read_run
from jaxrl.analysis.comparison_page import write_comparison
from jaxrl.cli.flags.autotune import read_chosen
from jaxrl.config import from_dict
from jaxrl.files import schema
from jaxrl.files.changes import changed_settings
from jaxrl.training.policy import state_shapes
from jaxrl.training.run_dir import manifest as manifests
from jaxrl.training.run_dir.directory import read_summary
from jaxrl.tuning.sweeps import sweep_file

QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
DEEP = json.loads("[" * 900 + "]" * 900)
NUMBERS = st.sampled_from(
    [math.nan, math.inf, -math.inf, 10**400, -(10**400), 2**63, 2**31, 1e300, -1, 0, -0.5, 1, True]
)
SCALARS = st.one_of(NUMBERS, st.none(), st.booleans(), st.integers(-10, 10), st.text(max_size=5))
JSON = st.one_of(
    SCALARS,
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    st.sampled_from([DEEP, [[]], [{}], {"": None}]),
)


def places(value, path=()):
    """Return the path of every field within a JSON value."""
    if isinstance(value, list | dict):
        for key in range(len(value)) if isinstance(value, list) else value:
            yield (*path, key)
            yield from places(value[key], (*path, key))


def damaged(value, path, replacement):
    """Return a copy of a JSON value in which one field is another, or missing for Ellipsis."""
    if not path:
        return replacement
    value = copy.deepcopy(value)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    if replacement is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = replacement
    return value


def real_manifest():
    """Return a manifest as `jaxrl.run` writes it, of a run that was resumed."""
    env = jaxrl.make("CartPole-v1", num_envs=4, max_steps_in_episode=20)
    algo, config = jaxrl.ppo(env), jaxrl.PPOConfig(hidden_sizes=(8,), num_steps=8)
    arguments = {
        "seed": 1, "total_steps": 64, "log_every": 1, "num_evaluations": 1, "eval_episodes": 2,
        "eval_greedy": False,
    }  # fmt: skip
    manifest = json.loads(json.dumps(manifests.describe(algo, config, arguments)))
    return json.loads(json.dumps(manifests.resumed(manifest, manifest)))


MANIFEST = real_manifest()
PLACES = [(), *places(MANIFEST)]


def works_or_names(use, *names):
    """Assert that a function works or raises a `ValueError` that has one of some texts."""
    try:
        use()
    except ValueError as error:
        message = str(error)
    else:
        return
    assert any(str(name) in message for name in names), message


def write_damaged(file, value, path, replacement):
    """Write a JSON file with one damaged field."""
    replacement = None if path == () and replacement is ... else replacement
    file.write_text(json.dumps(damaged(value, path, replacement)))


@QUICK
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path, position, bit):
    """Unless it changes nothing that is read, such as the name of the digest itself."""
    file = tmp_path / "manifest.json"
    schema.write(file, MANIFEST)
    data = bytearray(file.read_bytes())
    data[int(position * len(data))] ^= 1 << bit
    file.write_bytes(data)

    def read():
        found = manifests.read(tmp_path)
        assert {name: found[name] for name in MANIFEST} == MANIFEST

    works_or_names(read, file)


def test_an_edited_file_is_refused_until_its_digest_is_deleted(tmp_path):
    file = tmp_path / "summary.json"
    schema.write(file, {"interrupted": False, "mean_return": 1.0})
    content = json.loads(file.read_text()) | {"mean_return": 2.0}
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"summary.json is damaged: .* delete its 'digest'"):
        read_summary(tmp_path)
    del content[schema.DIGEST]
    file.write_text(json.dumps(content))
    assert read_summary(tmp_path)["mean_return"] == 2.0


@QUICK
@given(path=st.sampled_from(PLACES), value=st.one_of(st.just(...), JSON))
def test_any_value_in_a_manifest_is_read_or_refused_by_name(tmp_path, path, value):
    file = tmp_path / "manifest.json"
    write_damaged(file, MANIFEST, path, value)

    def rebuild():
        manifest = manifests.read(tmp_path, manifests.ARGUMENTS)
        state_shapes(*manifests.rebuild(manifest))

    def resume():
        manifest = manifests.read(tmp_path, manifests.TO_RESUME)
        manifests.differences(manifest, MANIFEST)
        manifests.resumed(manifest, MANIFEST)

    works_or_names(rebuild, file, "this run")
    works_or_names(resume, file)
    works_or_names(lambda: read_chosen(tmp_path, ["num_envs", "num_minibatches"]), file)


@settings(QUICK, max_examples=10)
@given(path=st.sampled_from(PLACES), value=st.one_of(st.just(...), JSON))
def test_any_value_in_a_manifest_is_compared_or_refused_by_name(tmp_path_factory, path, value):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a")
    write_run(folder / "b", seed=2)
    write_damaged(folder / "b" / "manifest.json", MANIFEST, path, value)

    def compare():
        groups = group_runs([read_run(folder / name) for name in "ab"])
        write_comparison(groups, folder / "page.html")

    works_or_names(compare, folder / "b")


SUMMARY = {"interrupted": False, "mean_return": 3.5, "algorithm": "ppo"}


@QUICK
@given(path=st.sampled_from([(), *places(SUMMARY)]), value=JSON)
def test_any_value_in_a_summary_is_read_or_refused_by_name(tmp_path, path, value):
    write_damaged(tmp_path / "summary.json", SUMMARY, path, value)
    works_or_names(lambda: read_summary(tmp_path)["interrupted"], tmp_path / "summary.json")


SWEEP = {
    "algorithm": "a2c", "env": "gymnax/CartPole-v1", "num_envs": 2, "env_options": {}, "seed": 1,
    "config": {"gamma": 0.9}, "scheduler": {"name": "HyperTrick"}, "sampler": "random", "lanes": 4,
    "phase": {"length": 3, "unit": "updates"}, "space": {"gamma": {"kind": "Uniform"}},
    "storage": None, "study": "s", "worker": "w", "command": "python sweep.py", "run_id": "r",
    "trials": [{"trial": 0, "values": {"gamma": 0.5}, "scores": [1.0, None, "-inf"],
                "status": "completed"}],
}  # fmt: skip


def test_the_sweep_that_is_damaged_below_is_intact(tmp_path):
    write_damaged(tmp_path / "sweep.json", SWEEP, (), SWEEP)
    assert sweep_file.read(tmp_path)["run_id"] == "r"


@QUICK
@given(path=st.sampled_from([(), *places(SWEEP)]), value=JSON)
def test_any_value_in_a_sweep_is_read_or_refused_by_name(tmp_path, path, value):
    write_damaged(tmp_path / "sweep.json", SWEEP, path, value)
    works_or_names(
        lambda: changed_settings(sweep_file.read(tmp_path), SWEEP, sweep_file.SAME),
        tmp_path / "sweep.json",
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "must be an object, got "),
        (b"null", "must be an object, got None"),
        (b"{", "Expecting property name"),
        (b'{"interrupted": "\xff"}', "can't decode byte 0xff"),
        (b'{"interrupted": 1}', "interrupted must be true or false, got 1"),
        (b"{}", "it lacks interrupted"),
        (b'{"a": ' + b"[" * 100_000, "nested deeper than 32 levels"),
        (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "nested deeper than 32 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "integer string conversion"),
    ],
)
def test_a_damaged_file_is_named(data, message, tmp_path):
    (tmp_path / "summary.json").write_bytes(data)
    with pytest.raises(ValueError, match=rf"summary\.json is damaged: .*{message}"):
        read_summary(tmp_path)


def test_old_files_get_defaults():
    old = {"algorithm": "ppo", "env": {"id": "x", "num_envs": 2}, "config": {}}
    checked = schema.check(old, schema.MANIFEST)
    assert checked["custom_network"] is False
    assert checked["env"]["options"] == {}
    assert "seed" not in checked
    assert "custom_network" not in old


def test_a_config_of_wrong_types_is_named():
    for name, value in (("num_steps", "8"), ("learning_rate", "x"), ("clip_value", 1)):
        with pytest.raises(ValueError, match=f"PPOConfig.{name} must be "):
            from_dict(jaxrl.PPOConfig, {name: value})
    assert jax.tree.leaves(from_dict(jaxrl.PPOConfig, {"target_kl": None}))
