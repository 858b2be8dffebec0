"""The exceptions of PBS's module (hook guide, "Exceptions"), which hooks catch by name."""


class EventIncompatibleError(AttributeError):
    """The event does not have this parameter."""


class UnsetAttributeNameError(Exception):
    """No attribute has this name."""


class BadAttributeValueTypeError(Exception):
    """The value has the wrong type for the attribute."""


class BadAttributeValueError(Exception):
    """The attribute does not accept this value, or is read-only."""


class UnsetResourceNameError(Exception):
    """No resource has this name."""


class BadResourceValueTypeError(Exception):
    """The value has the wrong type for the resource."""


class BadResourceValueError(Exception):
    """The resource does not accept this value."""


ALL = (
    EventIncompatibleError,
    UnsetAttributeNameError,
    BadAttributeValueTypeError,
    BadAttributeValueError,
    UnsetResourceNameError,
    BadResourceValueTypeError,
    BadResourceValueError,
)
