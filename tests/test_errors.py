"""Errors of this package can be caught as a family, or as what Python calls them."""

import inspect

import pytest

from hisparse import errors

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value)]
BUILT_IN = {
    errors.InputError: ValueError,
    errors.CapacityError: RuntimeError,
    errors.DiskFullError: OSError,
    errors.StorageError: OSError,
    errors.StateError: RuntimeError,
    errors.AccountingError: AssertionError,
}


def test_all_lists_every_error() -> None:
    """The names offered are the classes defined, in alphabetical order."""
    assert errors.__all__ == sorted(error.__name__ for error in CLASSES)


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_one_of_the_family(error: type[Exception]) -> None:
    """One except clause catches whatever this package raises, with its message."""
    with pytest.raises(errors.HiSparseError) as caught:
        raise error("rows must be int32[4], got int64[4]")
    assert str(caught.value) == "rows must be int32[4], got int64[4]"
    assert inspect.getdoc(error)


@pytest.mark.parametrize(("error", "built_in"), BUILT_IN.items())
def test_an_error_is_what_python_calls_it(error: type[Exception], built_in: type[Exception]) -> None:
    """Code that knows only Python's own errors catches each kind as it would expect."""
    assert issubclass(error, built_in)
    assert all(issubclass(leaf, built_in) for leaf in CLASSES if issubclass(leaf, error))


def test_an_input_error_is_never_a_state_error() -> None:
    """Fixing the argument, waiting for room and starting again are told apart."""
    for error in CLASSES:
        kinds = [k for k in (errors.InputError, errors.CapacityError, errors.StateError) if issubclass(error, k)]
        assert len(kinds) <= 1, error
