"""docs/faults.md names the tests, and every case has one or a reason for its lack."""

import faults

DOCUMENT = faults.PATH.read_text(encoding="utf-8")


def test_the_table_is_current():
    """A case without a test that gives no reason, and a test of no case, are errors."""
    assert faults.filled(DOCUMENT) == DOCUMENT, "run `make docs`"


def test_every_case_is_there():
    numbers = [int(number) for number in faults.ROW.findall(DOCUMENT)]
    assert sorted(numbers) == sorted({*range(1, 102)} - {70})
    assert DOCUMENT.count(faults.NO_TEST) < 4
