"""Sums worked digit by digit, from the ones up, in words that never change.

Every step needs only what stands a few words before it.
"""


def added(first: int, second: int) -> list[str]:
    """first + second: the steps, carries written out."""
    steps = []
    carry = 0
    for one, two in _digit_pairs(first, second):
        total = one + two + carry
        terms = f"{one}+{two}+{carry}" if carry else f"{one}+{two}"
        carry = total // 10
        steps.append(f"{terms}={total}, write {total % 10}, carry {carry}.")
    return steps


def subtracted(first: int, second: int) -> list[str]:
    """first - second, not negative: the steps, loans written out."""
    steps = []
    loan = 0
    for one, two in _digit_pairs(first, second):
        terms = f"{one}-{two}-{loan}" if loan else f"{one}-{two}"
        value = one - two - loan
        loan = int(value < 0)
        if loan:
            terms, value = "1" + terms, value + 10
        steps.append(f"{terms}={value}, write {value}, borrow {loan}.")
    return steps


def multiplied(first: int, digit: int) -> list[str]:
    """first x one digit: the steps, carries written out."""
    steps = []
    carry = 0
    for one in reversed(str(first)):
        product = int(one) * digit
        total = product + carry
        more = f", {product}+{carry}={total}" if carry else ""
        carry = total // 10
        steps.append(f"{one}x{digit}={product}{more}, write {total % 10}, carry {carry}.")
    return steps


def multiplied_long(first: int, second: int) -> list[str]:
    """first x second, both of two digits: two rows and their sum."""
    tens, ones = divmod(second, 10)
    low, high = first * ones, first * tens * 10
    return [
        *multiplied(first, ones),
        f"{first}x{ones}={low}.",
        *multiplied(first, tens),
        f"{first}x{tens}0={high}.",
        *added(high, low),
    ]


def _digit_pairs(first: int, second: int) -> list[tuple[int, int]]:
    """Digits of both from the ones up; the shorter one is filled with zeros."""
    width = max(len(str(first)), len(str(second)))
    one, two = str(first).zfill(width), str(second).zfill(width)
    return list(zip(map(int, reversed(one)), map(int, reversed(two))))
