"""The exceptions of PBS's module (hook guide, "Exceptions"); their names are part of what hooks catch."""


class EventIncompatibleError(AttributeError):
    """The event has no such parameter."""


class UnsetAttributeNameError(Exception):
    """No attribute has this name."""


class BadAttributeValueTypeError(Exception):
    """The attribute takes another type."""


class BadAttributeValueError(Exception):
    """The attribute does not take this value, or cannot be set."""


class UnsetResourceNameError(Exception):
    """No resource has this name."""


class BadResourceValueTypeError(Exception):
    """The resource takes another type."""


class BadResourceValueError(Exception):
    """The resource does not take this value."""


ALL = (
    EventIncompatibleError,
    UnsetAttributeNameError,
    BadAttributeValueTypeError,
    BadAttributeValueError,
    UnsetResourceNameError,
    BadResourceValueTypeError,
    BadResourceValueError,
)
