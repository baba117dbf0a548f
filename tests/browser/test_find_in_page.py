"""The text of folded steps is found: Chromium opens the closed list that has it."""

from collections.abc import Callable

from playwright.sync_api import Page

NewPage = Callable[..., Page]
IS_OPEN = "document.querySelector('#unseen').open"


def test_a_text_that_the_tree_does_not_show_is_found_and_its_list_opens(new_page: NewPage) -> None:
    assert not new_page("/r/large").evaluate(IS_OPEN)
    # A text fragment searches as find-in-page does, and no script can press Ctrl and F.
    page = new_page("/r/large#:~:text=run%20250")
    page.wait_for_function(IS_OPEN)
    assert page.locator("#unseen li", has_text="run 250").is_visible()


def test_a_found_step_is_one_click_from_its_place_in_the_tree(new_page: NewPage) -> None:
    page = new_page("/r/large?fold=1", java_script_enabled=False)
    page.locator("#unseen summary").click()
    name = page.locator("#unseen a").nth(40).inner_text()
    page.locator("#unseen a").nth(40).click()
    assert page.locator('[aria-selected="true"]').get_attribute("id") == f"t-{name}"
