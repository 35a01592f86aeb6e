"""The Rust parts of llmrt."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, final

def version() -> str:
    """Version of the extension module."""

def run_bench(config_json: str, on_progress: Callable[[bool, int, int, int, int], None] | None = None) -> str:
    """Runs a load against a server and returns the report as JSON.

    Blocks with the GIL released. ``on_progress(measuring, total, completed, failed, chunks)`` is called a few times a
    second. Ctrl-C cuts a measurement, whose report then says so; before it, KeyboardInterrupt is raised. Any other
    exception of a signal handler or of ``on_progress`` cuts the run and is raised.

    Raises ValueError if the configuration is refused, OSError if the server's models or a process cannot be read,
    RuntimeError if the warm-up fails.
    """

def run_entry(config_json: str) -> None:
    """Serves as an entry worker in a process of its own, until the supervisor's call or SIGTERM ends it.

    Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if a socket cannot be used,
    RuntimeError if the tokenizer or chat template cannot.
    """

def add_metrics(texts: Sequence[str], counters_only: bool = False) -> str:
    """Adds up the metrics of several entry workers, in OpenMetrics text form; ``counters_only`` leaves gauges out."""

def merge_metrics(workers: Sequence[tuple[int, str]]) -> str:
    """What all workers show, from each worker's own metrics by its number.

    Their sums, and each worker's under names of its own. Without the closing line.
    """

@final
class CoreSession:
    """A core on another host that has let this process in; for one :class:`Entry`."""

    slot: int
    """Number of this process among the entry workers of the core."""
    core: str
    """What the core says of itself, a JSON object."""

def join_core(target_json: str) -> CoreSession:
    """Joins a core on another host; one attempt, which takes some seconds at most.

    ``target_json`` is an object of ``address`` (``HOST:PORT``), ``secret`` and ``fingerprint``. Raises ConnectionError
    if the core cannot be reached now, PermissionError if it has another secret, RuntimeError if it refuses this
    process, ValueError if the object cannot be read.
    """

def run_gateway(config_json: str) -> None:
    """Lets entry nodes of other hosts in until the supervisor calls ``shutdown`` or sends SIGUSR1.

    Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
    bound.
    """

def run_detokenizer(config_json: str) -> None:
    """Serves as a detokenizer until the supervisor calls ``shutdown`` or sends SIGUSR1.

    Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
    bound, RuntimeError if the tokenizer cannot be read.
    """

def run_mock_engine(config_json: str) -> None:
    """Serves as an engine that makes its answers up, until the supervisor sends SIGUSR1.

    Blocks with the GIL released. Raises ValueError if the configuration is refused, OSError if an endpoint cannot be
    bound.
    """

def check_sampling(fields_json: str) -> None:
    """Raises ValueError unless ``fields_json`` is an object of sampling fields that the server would take.

    Token ids are bounded by a model's vocabulary, which is not known here.
    """

def check_keys(path: str, priorities: bool) -> None:
    """Raises ``ValueError`` unless an entry worker could use the API keys in ``path``.

    ``priorities`` says whether the scheduler knows any.
    """

def check_tls(tls_json: str) -> None:
    """Raises ValueError unless ``tls_json`` names certificates and keys that an entry worker could use now."""

def check_mock_faults(faults: str) -> None:
    """Raises ValueError if ``faults`` is no list of faults that a mock engine understands."""

@final
class GgufFile:
    """An open GGUF file (version 2 or 3). It is mapped, not copied: do not change it while it is open."""

    def __new__(cls, path: str | PathLike[str]) -> GgufFile:
        """Raises OSError if the file cannot be read, ValueError if it is not sound GGUF."""

    def keys(self) -> list[str]:
        """All metadata keys, sorted."""

    def get(self, key: str) -> Any:
        """The metadata value under ``key`` as int, float, bool, str or list of these; None if there is none."""

    def tensors(self) -> list[tuple[str, list[int], str]]:
        """All tensors in file order: name, shape as torch has it, stored type such as "Q4_1"."""

    def read(self, name: str, dtype: Literal["f32", "f16", "bf16"]) -> bytearray:
        """Dequantises a tensor: little-endian, row-major. Runs on all cores; other Python threads run meanwhile.

        Raises KeyError if there is no such tensor, ValueError for a stored type or dtype that is not supported.
        """

@final
class Tokenizer:
    """Text to token ids and back. All methods may be called from many threads at once."""

    @staticmethod
    def from_gguf(path: str | PathLike[str]) -> Tokenizer:
        """Rebuilds the tokenizer that a GGUF file describes.

        Raises OSError if the file cannot be read, ValueError if its kind of tokenizer is not supported.
        """

    @staticmethod
    def from_file(tokenizer_json: str | PathLike[str]) -> Tokenizer:
        """Loads a ``tokenizer.json``; truncation and padding in it are ignored.

        Raises OSError if the file cannot be read, ValueError if it is no tokenizer.
        """

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of ``text``; the text of a special token in it becomes that token.

        With ``add_special_tokens``, adds what the model expects around a plain text (a BOS, often nothing).
        """

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``, without that of special tokens unless asked for. Ids outside the vocabulary have no text."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""

    @property
    def special_ids(self) -> list[int]:
        """Ids of the special tokens, ascending."""

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""

    def id_to_token(self, id: int) -> str | None:
        """The token with this id as the vocabulary spells it: byte-level tokens in their alphabet, not as text."""

@final
class Entry:
    """An entry worker: HTTP server, tokenizer threads and router, on threads of its own."""

    def __new__(cls, config_json: str, core: CoreSession | None = None) -> Entry:
        """With ``core``, which is used up, the worker is an entry node of that core.

        It ends by itself when the core will not have it any more. Raises ValueError if the configuration is refused, or
        ``core`` was used before.
        """

    def start(self) -> None:
        """Loads the tokenizer, opens the links and serves; returns when connections are accepted.

        Raises OSError if a socket cannot be used, RuntimeError if the tokenizer or chat template cannot, or if the
        worker was started before.
        """

    def shutdown(self, timeout: float) -> None:
        """Takes no new requests, gives open ones ``timeout`` seconds, then ends.

        Returns at once; a second call replaces the timeout of the first.
        """

    def reload(self) -> None:
        """Reads certificates and keys again, for connections from now on.

        Returns at once; what cannot be used is logged and changes nothing.
        """

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the worker has ended; False when ``timeout`` seconds passed before."""

    def client(self) -> Client:
        """A way to make requests from this process.

        Raises OSError if there are no more descriptors, RuntimeError if the worker was not started.
        """

    def core_down(self, reason: str, scheduler: int | None = None, back_in: float | None = None) -> None:
        """A process of the core has died, for ``reason``.

        ``scheduler`` is the incarnation of the scheduler that it was: its open requests end with an error. ``back_in``
        is the number of seconds until the core is expected to be up again, which clients are told; requests get 503
        until then.
        """

@final
class Ledger:
    """Counts for all entry workers what their requests hold and use, on a thread of its own."""

    def __new__(cls, config_json: str) -> Ledger:
        """Starts to count; workers can connect when it returns.

        Raises ValueError if the configuration or its file of keys is refused, OSError if the endpoint cannot be bound.
        """

    def reload(self) -> None:
        """Reads the file of keys again; one that cannot be used is logged and changes nothing."""

    def close(self) -> None:
        """Ends it; a second call does nothing."""

@final
class Client:
    """Makes requests to the entry worker of this process. All methods may be called from many threads."""

    def request(self, method: str, path: str, body: bytes) -> Response:
        """Sends a request with a JSON body; returns at once. Raises ValueError if ``method`` or ``path`` is none."""

    def ready(self) -> list[int]:
        """Keys of the responses that have news since the last call."""

    def fileno(self) -> int:
        """Descriptor that is readable while :meth:`ready` has something to tell; only to be waited for."""

@final
class Response:
    """An answer as it arrives. Closing or dropping it cancels its request."""

    @property
    def key(self) -> int:
        """What :meth:`Client.ready` calls it."""

    @property
    def status(self) -> int | None:
        """HTTP status, as far as :meth:`take` has met it."""

    @property
    def ended(self) -> bool:
        """Whether :meth:`take` has met the end, or the response was closed. Without a status it never began."""

    def take(self) -> bytes:
        """The part of the body that has arrived since the last call; never waits."""

    def close(self) -> None:
        """Cancels the request unless it has ended."""
