"""The README says what the data say."""

import re

from labs_common.cli import app
from labs_common.readme import README, rewritten


def test_the_tables_are_those_of_the_recorded_data():
    text = README.read_text(encoding="utf-8")

    assert rewritten(text) == text
    assert "not measured" not in text.split("<!-- end -->")[0]


def test_every_command_it_names_exists():
    named = set(re.findall(r"`palab (\w+)", README.read_text(encoding="utf-8")))
    existing = {command.name or command.callback.__name__ for command in app.registered_commands}
    existing |= {group.name for group in app.registered_groups}

    assert named - {"bench"} <= existing
    assert existing <= named | {"bench"}
