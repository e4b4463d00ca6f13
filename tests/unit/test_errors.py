"""The tree of exceptions, and what each says of itself."""

import inspect
import pickle

import pytest

import nsqflow
from nsqflow import errors
from nsqflow.errors import (
    SERVER_ERRORS,
    AdminError,
    BadMessageError,
    ConfigError,
    NsqError,
    PipelineFailed,
    Ranges,
    RemoteProtocolError,
    RequestTimeout,
    ServerError,
    copy_error,
)

# What nsqd 1.3.0 and 0.3.7-HA.1.13.0 are known to send.
CODES = {
    "E_INVALID": "InvalidCommandError",
    "E_BAD_BODY": "BadBodyError",
    "E_BAD_MESSAGE": "BadMessageError",
    "E_BAD_TOPIC": "BadTopicError",
    "E_BAD_CHANNEL": "BadChannelError",
    "E_BAD_PARTITION": "BadPartitionError",
    "E_BAD_PROTOCOL": "BadProtocolError",
    "E_IDENTIFY_FAILED": "IdentifyFailedError",
    "E_PUB_FAILED": "PublishFailedError",
    "E_MPUB_FAILED": "MultiPublishFailedError",
    "E_DPUB_FAILED": "DeferredPublishFailedError",
    "E_PUB_TOO_MUCH_WAITING": "TooMuchWaitingError",
    "E_SUB_FAILED": "SubscribeFailedError",
    "E_FIN_FAILED": "FinishFailedError",
    "E_REQ_FAILED": "RequeueFailedError",
    "E_TOUCH_FAILED": "TouchFailedError",
    "E_AUTH_DISABLED": "AuthDisabledError",
    "E_AUTH_FAILED": "AuthFailedError",
    "E_AUTH_FIRST": "AuthFirstError",
    "E_AUTH_ERROR": "AuthError",
    "E_UNAUTHORIZED": "UnauthorizedError",
    "E_FAILED_ON_NOT_LEADER": "NotLeaderError",
    "E_FAILED_ON_NOT_WRITABLE": "NotWritableError",
    "E_TOPIC_NOT_EXIST": "TopicNotExistError",
    "E_SUB_ORDER_IS_MUST": "OrderedSubscribeRequiredError",
    "E_SUB_EXTEND_NEED": "ExtendNeededError",
    "E_SUB_EXTEND_FORBIDDON": "ExtendForbiddenError",
    "E_SUB_CHANNEL_NOT_REGISTERED": "ChannelNotRegisteredError",
    "E_EXT_NOT_SUPPORT": "ExtNotSupportedError",
    "E_INVALID_JSON_HEADER": "InvalidHeaderError",
    "INVALID_TRACE_ID": "InvalidTraceIdError",
}

# The redesigned NSQ's retry table (published as a picture): retry? ask lookupd first?
RETRY_TABLE = {
    "E_BAD_MESSAGE": (False, False),
    "E_BAD_TOPIC": (False, False),
    "E_FAILED_ON_NOT_LEADER": (True, True),
    "E_FAILED_ON_NOT_WRITABLE": (True, True),
    "E_INVALID": (True, False),
    "E_PUB_FAILED": (True, False),
    "E_TOPIC_NOT_EXIST": (True, True),
    "E_BAD_BODY": (False, False),
}
# Not in the table: failures of the moment, by their meaning.
ALSO_RETRIABLE = {"E_MPUB_FAILED", "E_DPUB_FAILED", "E_PUB_TOO_MUCH_WAITING", "E_SUB_FAILED"}

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, BaseException)
]


def make(cls: type[BaseException]) -> BaseException:
    if issubclass(cls, AdminError):
        return cls(500, "three words", "host:1/stats")
    if issubclass(cls, PipelineFailed):
        return cls({"out": "three words"})
    takes_two = issubclass(cls, ServerError | RemoteProtocolError)
    return cls("E_ONE", "two words") if takes_two else cls("three words")


def test_every_code_has_its_own_class_and_no_other_code_is_known() -> None:
    assert {code: cls.__name__ for code, cls in SERVER_ERRORS.items()} == CODES


def test_a_class_of_a_user_takes_no_code_of_nsqd() -> None:
    type("OwnError", (ServerError,), {})
    assert {code: cls.__name__ for code, cls in SERVER_ERRORS.items()} == CODES


@pytest.mark.parametrize("code", CODES)
def test_a_class_names_its_code_first_in_its_docstring(code: str) -> None:
    assert (SERVER_ERRORS[code].__doc__ or "").startswith(code)


@pytest.mark.parametrize("code", CODES)
def test_an_error_frame_becomes_the_class_of_its_code(code: str) -> None:
    error = ServerError.from_frame(f"{code} topic name not valid".encode())
    assert type(error).__name__ == CODES[code]
    assert (error.code, error.text) == (code, "topic name not valid")
    assert str(error) == f"{code} topic name not valid"


def test_an_unknown_code_becomes_a_plain_server_error() -> None:
    error = ServerError.from_frame(b"E_NEW_IN_2031 whatever it means")
    assert type(error) is ServerError
    assert (error.code, error.text) == ("E_NEW_IN_2031", "whatever it means")
    assert not error.retriable
    assert not error.stale_route


@pytest.mark.parametrize(
    ("frame", "code", "text"),
    [
        (b"E_TOPIC_NOT_EXIST ", "E_TOPIC_NOT_EXIST", ""),  # the redesigned server's bare code
        (b"E_TOPIC_NOT_EXIST", "E_TOPIC_NOT_EXIST", ""),
        # nsqd 1.3.0 says the code of MPUB twice: the first word counts
        (b"E_BAD_TOPIC E_BAD_TOPIC MPUB x", "E_BAD_TOPIC", "E_BAD_TOPIC MPUB x"),
        (b"E_INVALID invalid command \xff", "E_INVALID", "invalid command \\xff"),
        (b"\xff\xfe", "\\xff\\xfe", ""),
        (b"", "", ""),
    ],
)
def test_the_first_word_of_an_error_frame_is_the_code(frame: bytes, code: str, text: str) -> None:
    error = ServerError.from_frame(frame)
    assert (error.code, error.text) == (code, text)
    assert str(error) == (f"{code} {text}" if text else code)


@pytest.mark.parametrize("code", CODES)
def test_retries_follow_the_table_of_the_redesigned_nsq(code: str) -> None:
    cls = SERVER_ERRORS[code]
    expected = RETRY_TABLE.get(code, (code in ALSO_RETRIABLE, False))
    assert (cls.retriable, cls.stale_route) == expected


def test_one_except_catches_all_and_the_standard_ones_catch_their_own() -> None:
    assert all(issubclass(cls, NsqError) for cls in CLASSES)
    assert [cls.__name__ for cls in CLASSES if issubclass(cls, ValueError)] == ["ConfigError"]
    assert [cls.__name__ for cls in CLASSES if issubclass(cls, TimeoutError)] == ["RequestTimeout"]
    assert not issubclass(ConfigError, RequestTimeout)


def test_the_tree_in_the_docstring_has_every_class_but_those_of_the_codes() -> None:
    tree = errors.__doc__ or ""
    named = {cls.__name__ for cls in CLASSES if f" {cls.__name__} " in tree.replace("\n", " ")}
    assert named == {cls.__name__ for cls in CLASSES} - set(CODES.values())


@pytest.mark.parametrize("cls", CLASSES)
def test_an_exception_comes_back_from_another_process_as_it_was(cls: type[BaseException]) -> None:
    error = make(cls)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RemoteProtocolError("frame of 3 bytes"), "frame of 3 bytes"),
        (RemoteProtocolError("PUB too big", "E_BAD_MESSAGE"), "E_BAD_MESSAGE PUB too big"),
        (RemoteProtocolError("", "E_BAD_PROTOCOL"), "E_BAD_PROTOCOL"),
    ],
)
def test_a_protocol_error_says_its_code_before_its_text(
    error: RemoteProtocolError, says: str
) -> None:
    assert str(error) == says


def test_ranges_show_the_result_of_each_message() -> None:
    ranges = Ranges((range(3), range(4, 5)), (range(3, 4),), ())
    assert str(ranges) == "accepted: 0 to 2, 4 to 4; refused: 3 to 3; uncertain: none"


def test_every_error_is_exported_by_the_package() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.NsqError)
    }
    assert {"TlsNotGrantedError", "InvalidCommandError"} <= raised <= {*nsqflow.__all__}


@pytest.mark.parametrize(
    "error",
    [
        ServerError("E_NEW", "text"),
        BadMessageError("E_BAD_MESSAGE"),
        RemoteProtocolError("text", "E_INVALID"),
        RequestTimeout("text"),
        ConfigError("text"),
    ],
)
def test_a_copy_says_the_same(error: NsqError) -> None:
    error.add_note("from host:1")
    error.__cause__ = OSError("why")
    copy = copy_error(error)
    assert copy is not error
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__notes__ == ["from host:1"]
    assert copy.__cause__ is error.__cause__
    if isinstance(error, ServerError | RemoteProtocolError):
        assert isinstance(copy, ServerError | RemoteProtocolError)
        assert copy.code == error.code
