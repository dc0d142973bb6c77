"""Tables as Markdown."""

from __future__ import annotations

import pytest

from turnwise_jax.tables import markdown_table


def test_the_first_column_is_text_and_the_others_are_numbers():
    told = markdown_table(["policy", "reward", ""], [["SFT", "1.2", ""], ("GRPO", "1.4", "yes")])
    assert told == (
        "| policy | reward |  |\n| --- | ---: | ---: |\n| SFT | 1.2 |  |\n| GRPO | 1.4 | yes |"
    )


def test_columns_are_as_told():
    assert markdown_table(("n", "what"), iter([("1", "a")]), "rl") == (
        "| n | what |\n| ---: | --- |\n| 1 | a |"
    )
    with pytest.raises(KeyError):
        markdown_table(["a"], [], "c")
