"""`jaxrl envs`: ids with their spaces."""


def test_ids_are_listed_with_their_spaces(jaxrl_command):
    assert jaxrl_command("envs", "breakout").stdout.splitlines() == [
        "gymnax/Breakout-MinAtar  bool[10, 10, 4]  Discrete(3)",
        "envpool/Breakout-v5  uint8[84, 84, 4]  Discrete(4)",
        "gymnasium/ALE/Breakout-v5  uint8[84, 84, 4]  Discrete(4)",
    ]


def test_patterns_are_those_of_shells(jaxrl_command):
    (line,) = jaxrl_command("envs", "envpool/PointMaze_Open-v?").stdout.splitlines()
    assert line.endswith("observation: float32[4]}  float32[2]")


def test_environments_that_cannot_be_made_are_listed_with_the_reason(jaxrl_command):
    (line,) = jaxrl_command("envs", "vizdoomcustom").stdout.splitlines()
    assert line.startswith("envpool/VizdoomCustom-v1  cannot be made here: ")


def test_a_pattern_without_a_match_is_an_error(jaxrl_command):
    finished = jaxrl_command("envs", "zzz")
    assert finished.returncode == 1
    assert "no environment id matches 'zzz'" in finished.stderr
