"""What a snippet may do and how that is classed: the lists that the guard reads and docs/guard.md shows.

Allow-list first: only what is named here as `reading` is; whatever is named nowhere is `changing`.
The groups of the other classes are there for a better reason in the answer, and for what must not
run at all. Names are resolved to the objects that they are in this process, so that an alias is
seen through. Data only, standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

READING = "reading"
BLOCKING = "blocking"
SETTLED = "settled"
CHANGING = "changing"
COLLECTIVE = "collective"
REFUSED = "refused"

CLASSES = {
    READING: "Only looks. Runs at once, beside the training.",
    BLOCKING: "Waits for something outside (a file, a program, the network, a device) and changes nothing in "
    "the job. Runs at once, never on the training thread.",
    SETTLED: "Only looks, but at gradients, or at what autograd keeps for backward. Backward writes these "
    "without Python's lock, and torch's memory breaks when another thread touches one meanwhile. Runs on the "
    "training thread, between two optimizer steps.",
    CHANGING: "Changes the job, or may: everything that is not known to be reading. Runs on the training "
    "thread, between two optimizer steps.",
    COLLECTIVE: "Waits for the other ranks, which do not know of it: would hang or corrupt the run. Refused "
    "with more than one rank.",
    REFUSED: "Ends, forks or blinds the process, waits for a terminal, or can never end. Always refused.",
}
"""What each class means, the mildest first; a snippet has the class of the worst of its parts."""

SEVERITY = {kind: number for number, kind in enumerate(CLASSES)}

# What a call gives back, as far as the guard follows it.
SOMETHING = "pure"  # something of a library; may be the job's own
FRESH = "fresh"  # something new that nobody else has
GATHER = "gather"  # a new iterator over what is in the arguments, or a container of it that is made later
CONSUME = "consume"  # a new container of all that is in the arguments, at once
PAIR = "pair"  # the same, of tuples
TAKE = "take"  # one of the arguments, or of what is in them
LOOK = "look"  # like SOMETHING, and touches its arguments in no way that runs code of theirs
SHOW = "show"  # the text of its arguments


class Group(NamedTuple):
    """Functions of one module, or methods of one class, that are classed alike."""

    kind: str
    of: str
    """A module or a class, by its dotted name."""
    names: tuple[str, ...]
    """`*`: all there are."""
    why: str
    gives: str = SOMETHING
    """One of the words above, or the name of a special treatment."""


def _group(kind: str, of: str, names: str, why: str, gives: str = SOMETHING) -> Group:
    return Group(kind, of, tuple(names.split()), why, gives)


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


def _reading(of: str, names: str, gives: str = SOMETHING, why: str = "looks") -> Group:
    return _group(READING, of, names, why, gives)


_NEW_TENSORS = """
abs absolute acos add all allclose amax amin aminmax angle any argmax argmin argsort argwhere asin atan
atan2 bincount bitwise_and bitwise_not bitwise_or bitwise_xor bmm ceil clamp clip clone copysign corrcoef
cos cosh count_nonzero cov cross cummax cummin cumprod cumsum deg2rad det diag_embed diff dist div divide
dot eq equal erf erfc erfinv exp exp2 expm1 flip fliplr flipud float_power floor floor_divide fmax fmin fmod
frac frexp gather ge ger greater greater_equal heaviside histc histogram hypot index_select inner inverse
isclose isfinite isinf isnan isneginf isposinf isreal kron kthvalue le lerp less less_equal lgamma log log10
log1p log2 log_softmax logaddexp logcumsumexp logdet logical_and logical_not logical_or logical_xor
logsumexp lt masked_fill masked_select matmul matrix_exp matrix_power max maximum mean median min minimum mm
mode msort mul multiply mv nan_to_num nanmean nanmedian nanquantile nansum ne neg negative nonzero norm
not_equal outer pow prod qr quantile rad2deg reciprocal remainder renorm repeat_interleave roll rot90 round
rsqrt scatter scatter_add sgn sigmoid sign signbit sin sinc sinh slogdet softmax sort sqrt square std sub
subtract sum svd take take_along_dim tan tanh tile topk trace tril triu true_divide trunc unique
unique_consecutive var vdot where xlogy
"""
_FUNCTIONS_OF_TENSORS = """
arange block_diag bucketize cat cdist column_stack combinations concat concatenate
cosine_similarity dstack empty empty_like eye full full_like hstack isin linspace logspace
ones ones_like pairwise_distance polar rsub searchsorted stack std_mean trapezoid trapz vander
var_mean vstack zeros zeros_like
"""
_VIEWS_OF_TENSORS = """
adjoint as_strided broadcast_to chunk conj detach diag diagonal flatten imag moveaxis movedim narrow permute
positive ravel real reshape select split squeeze swapaxes swapdims t tensor_split transpose unbind unflatten
unsqueeze
"""
_ABOUT_TENSORS = (
    "is_complex is_conj is_floating_point is_inference is_neg is_nonzero is_same_size "
    "is_signed numel"
)
_METHODS_OF_TENSORS = """
T H mT mH bfloat16 bool byte cdouble cfloat char cpu data_ptr dim double element_size expand_as float
get_device half int is_coalesced is_contiguous is_pinned is_shared is_set_to item long ndimension nelement
new_empty new_full new_ones new_tensor new_zeros numpy repeat reshape_as short size sparse_dim
storage_offset stride sum_to_size to to_dense tolist type type_as unfold untyped_storage view view_as nbytes
cuda coalesce indices values __len__ __getitem__ __iter__ __contains__ contiguous expand
"""
_NUMPY = """
abs absolute all allclose amax amin any arange argmax argmin argsort argwhere array array_equal
average bincount ceil clip concatenate corrcoef cos count_nonzero cov cumprod cumsum diff dot einsum exp
expm1 eye floor full histogram hstack isclose isfinite isinf isnan isneginf isposinf linspace log log10
log1p log2 logical_and logical_not logical_or matmul max maximum mean median min minimum nan_to_num nanmax
nanmean nanmin nanstd nansum nonzero ones ones_like percentile prod quantile round shape sign
sin sort sqrt square stack std subtract sum tanh unique var vstack where zeros
zeros_like ndim size float32 float64 float16 int8 int16 int32 int64 bool_ uint8
"""
_EXACT = (
    "builtins.str builtins.bytes builtins.int builtins.float builtins.complex builtins.bool "
    "builtins.tuple"
)

READING_GROUPS: tuple[Group, ...] = (
    # Python's own
    _reading("builtins", "abs all any bin bool bytes chr complex divmod float hash hex int len oct ord round "
             "slice sum bytearray", FRESH),
    _reading("builtins", "list tuple set frozenset dict sorted", CONSUME),
    _reading("builtins", "reversed filter", GATHER),
    _reading("builtins", "enumerate zip", PAIR),
    _reading("builtins", "max min", TAKE),
    _reading("builtins", "callable id isinstance issubclass", LOOK),
    _reading("builtins", "print str repr ascii format", SHOW),
    _reading("builtins", "getattr", "attribute"),
    _reading("builtins", "hasattr", "attribute"),
    _reading("builtins", "type", "kind"),
    _reading("builtins", "vars", "variables"),
    _reading("builtins", "dir locals globals object super property staticmethod classmethod", LOOK),
    _reading("builtins", "iter next map pow range open", "special"),
    _reading("builtins", "__import__", "load"),
    _reading("importlib", "import_module", "load"),
    *(_reading(of, "*", FRESH, "never changes") for of in _EXACT.split()),
    _reading("builtins.str", "join", "joined"),
    _reading("builtins.str", "format format_map", "formatted"),
    _reading("builtins.tuple", "__iter__ __getitem__", GATHER),
    *(_reading(of, "copy __iter__ __reversed__", GATHER) for of in ("builtins.list", "collections.deque")),
    *(_reading(of, "__len__ __getitem__ __contains__ count index", TAKE)
      for of in ("builtins.list", "collections.deque", "builtins.range", "builtins.tuple")),
    _reading("builtins.dict", "copy keys values __iter__", GATHER),
    _reading("builtins.dict", "items", PAIR),
    _reading("builtins.dict", "get __getitem__", TAKE),
    _reading("builtins.dict", "__len__ __contains__ fromkeys", FRESH),
    *(_reading(of, "copy difference intersection union symmetric_difference __iter__", GATHER)
      for of in ("builtins.set", "builtins.frozenset")),
    *(_reading(of, "isdisjoint issubset issuperset __len__ __contains__", FRESH)
      for of in ("builtins.set", "builtins.frozenset")),
    *(_reading(of, "__iter__ __len__ __getitem__ __contains__", GATHER)
      for of in ("builtins.range", "builtins.bytearray", "types.MappingProxyType", "os._Environ")),
    _reading("types.MappingProxyType", "items", PAIR),
    *(_reading(of, "keys values get", GATHER) for of in ("types.MappingProxyType", "os._Environ")),
    _reading("os._Environ", "items", PAIR),
    _reading("collections.Counter", "most_common", PAIR),
    _reading("collections.Counter", "elements total", GATHER),
    # the standard library
    _reading("collections", "Counter OrderedDict deque ChainMap", CONSUME),
    _reading("collections", "defaultdict", "special"),
    _reading("collections", "namedtuple", FRESH),
    _reading("itertools", "chain accumulate islice takewhile dropwhile compress filterfalse starmap tee "
             "pairwise batched", GATHER),
    _reading("itertools", "groupby product permutations combinations zip_longest", PAIR),
    _reading("itertools", "count cycle repeat", "endless"),
    _reading("itertools.chain", "from_iterable", GATHER),
    _reading("functools", "partial reduce", "special"),
    _reading("functools", "wraps lru_cache cache", "wrapper"),
    _reading("operator", "itemgetter", "getter"),
    _reading("operator", "add sub mul truediv floordiv mod neg pos eq ne lt le gt ge contains not_ truth",
             FRESH),
    _reading("math", "*", FRESH),
    _reading("statistics", "mean fmean median mode stdev pstdev variance pvariance quantiles", FRESH),
    _reading("time", "time time_ns monotonic perf_counter perf_counter_ns monotonic_ns process_time strftime "
             "localtime gmtime ctime asctime", FRESH),
    _reading("datetime", "datetime timedelta date time", FRESH),
    _reading("datetime.datetime", "now utcnow fromtimestamp isoformat strftime today timestamp", FRESH),
    _reading("copy", "copy", "copy"),
    _reading("json", "dumps loads load", SHOW),
    _reading("pprint", "pprint pformat pp", SHOW),
    _reading("textwrap", "dedent indent shorten wrap fill", FRESH),
    _reading("re", "compile escape findall finditer fullmatch match search split sub", FRESH),
    _reading("io", "StringIO BytesIO", FRESH),
    _reading("fractions", "Fraction", FRESH),
    _reading("decimal", "Decimal", FRESH),
    _reading("types", "SimpleNamespace", "record"),
    _reading("pathlib", "Path PurePath PosixPath", FRESH),
    _reading("os", "getpid getppid getcwd cpu_count getloadavg uname getuid getgid sched_getaffinity times "
             "fspath getenv get_terminal_size", FRESH),
    _reading("posixpath", "join basename dirname split splitext abspath normpath isabs", FRESH),
    _reading("platform", "node platform python_version machine release system processor uname", FRESH),
    _reading("socket", "gethostname", FRESH),
    _reading("sys", "getsizeof getrefcount getrecursionlimit getswitchinterval gettrace getprofile exc_info "
             "_current_frames _getframe getdefaultencoding", LOOK),
    _reading("threading", "enumerate active_count current_thread main_thread get_ident get_native_id"),
    _reading("threading.Thread", "is_alive getName isDaemon", FRESH),
    _reading("gc", "get_referrers get_referents", "anything"),
    _reading("gc", "get_count get_stats get_threshold isenabled "
             "is_tracked"),
    _reading("inspect", "getsource getsourcelines getsourcefile getfile getdoc signature getmro isfunction "
             "isclass ismethod ismodule isgenerator getattr_static currentframe stack", LOOK),
    _reading("traceback", "format_stack format_exc print_exc print_stack extract_stack walk_stack "
             "format_list "
             "format_exception format_tb"),
    _reading("resource", "getrusage getrlimit", FRESH),
    _reading("tracemalloc", "get_traced_memory is_tracing", FRESH),
    _reading("warnings", "warn", FRESH),
    _reading("contextlib", "suppress nullcontext closing", FRESH),
    _reading("dataclasses", "asdict astuple fields is_dataclass", "copy"),
    _reading("functools.partial", "func args keywords", LOOK),
    # torch
    _reading("torch", _NEW_TENSORS + _FUNCTIONS_OF_TENSORS, FRESH, "makes a new tensor"),
    _reading("torch", _VIEWS_OF_TENSORS, why="looks at the same memory"),
    _reading("torch", "tensor scalar_tensor is_tensor typename device dtype Size finfo iinfo Generator",
             FRESH),
    _reading("torch", _ABOUT_TENSORS),
    _reading("torch", "einsum meshgrid tensordot cartesian_prod as_tensor from_numpy get_default_dtype "
             "get_default_device get_num_threads get_num_interop_threads get_rng_state initial_seed "
             "is_grad_enabled is_inference_mode_enabled is_autocast_enabled is_anomaly_enabled "
             "are_deterministic_algorithms_enabled get_float32_matmul_precision get_autocast_dtype "
             "broadcast_tensors can_cast result_type"),
    _reading("torch", "no_grad enable_grad inference_mode", "wrapper", "for the snippet only"),
    _reading("torch.Tensor", _NEW_TENSORS, FRESH, "makes a new tensor"),
    _reading("torch.Tensor", " ".join((_VIEWS_OF_TENSORS, _ABOUT_TENSORS, _METHODS_OF_TENSORS)), why="looks"),
    _reading("torch.linalg", "norm vector_norm matrix_norm svd svdvals eigh eigvalsh eigvals det slogdet "
             "matrix_rank cond inv qr cholesky", FRESH),
    _reading("torch.fft", "fft rfft fft2 fftfreq rfftfreq fftshift", FRESH),
    _reading("torch.nn.functional", "softmax log_softmax relu gelu sigmoid tanh silu softplus cross_entropy "
             "mse_loss l1_loss nll_loss binary_cross_entropy_with_logits cosine_similarity normalize one_hot "
             "pad linear layer_norm", FRESH),
    _reading("torch.cuda", "is_available is_initialized device_count current_device get_device_name "
             "get_device_capability get_device_properties memory_allocated max_memory_allocated "
             "memory_reserved "
             "max_memory_reserved memory_stats memory_stats_as_nested_dict memory_summary memory_snapshot "
             "mem_get_info utilization temperature power_draw clock_rate get_rng_state get_arch_list "
             "is_bf16_supported current_stream default_stream"),
    _reading("torch.accelerator", "is_available device_count current_accelerator"),
    _reading("torch.backends.mps", "is_available is_built"),
    _reading("torch.distributed", "is_available is_initialized is_backend_available get_rank get_world_size "
             "get_backend is_nccl_available is_gloo_available is_mpi_available is_torchelastic_launched "
             "get_process_group_ranks get_node_local_rank", why="only this rank is asked"),
    _reading("torch.nn.Module", "parameters buffers", FRESH),
    _reading("torch.nn.Module", "named_parameters named_buffers", "named"),
    _reading("torch.nn.Module", "modules children named_modules named_children get_submodule", "modules"),
    _reading("torch.nn.Module", "state_dict", "state"),
    _reading("torch.nn.Module", "get_parameter get_buffer get_extra_state extra_repr "
             "_get_name"),
    *(_reading(f"torch.nn.{of}", "__iter__ __getitem__ __len__", "modules")
      for of in ("Sequential", "ModuleList", "ModuleDict")),
    _reading("torch.nn.ModuleDict", "__contains__ keys values items", "modules"),
    *(_reading(f"torch.nn.{of}", "__iter__ __getitem__ __len__") for of in ("ParameterList",
    "ParameterDict")),
    _reading("torch.nn.ParameterDict", "__contains__ keys values"),
    _reading("torch.nn.ParameterDict", "items", "named"),
    _reading("torch.nn", "Module Sequential", FRESH),
    _reading("torch.nn.utils", "parameters_to_vector get_total_norm", FRESH),
    _reading("torch.optim.Optimizer", "state_dict", FRESH),
    _reading("torch.optim.lr_scheduler.LRScheduler", "get_last_lr state_dict", FRESH),
    _reading("torch.optim.lr_scheduler.ReduceLROnPlateau", "get_last_lr state_dict", FRESH),
    _reading("torch.amp.grad_scaler.GradScaler", "get_scale get_growth_factor get_backoff_factor "
             "get_growth_interval is_enabled state_dict", FRESH),
    _reading("torch.utils.data.DataLoader", "__len__", FRESH),
    _reading("torch.utils.data.TensorDataset", "__len__ __getitem__"),
    # numpy
    _reading("numpy", _NUMPY, FRESH),
    _reading("numpy", "asarray ravel reshape squeeze transpose trace"),
    _reading("numpy.linalg", "norm svd eigh eigvalsh det inv matrix_rank", FRESH),
    _reading("numpy.ndarray", "all any argmax argmin argsort astype copy cumsum diagonal dot flatten item "
             "max "
             "mean min nonzero prod ravel reshape round squeeze std sum tolist trace transpose var view "
             "__len__ __getitem__ __iter__ __contains__"),
)

_OUTSIDE = "waits for something outside of the job"
BLOCKING_GROUPS: tuple[Group, ...] = (
    _group(BLOCKING, "subprocess", "run check_output check_call call getoutput getstatusoutput Popen",
           "runs a program", FRESH),
    _group(BLOCKING, "os", "system popen posix_spawn posix_spawnp", "runs a program"),
    _group(BLOCKING, "time", "sleep", "waits"),
    _group(BLOCKING, "torch", "load", "reads a file", FRESH),
    _group(BLOCKING, "torch.jit", "load", "reads a file", FRESH),
    _group(BLOCKING, "torch.cuda", "synchronize list_gpu_processes", "waits for the device"),
    _group(BLOCKING, "numpy", "load loadtxt genfromtxt", "reads a file", FRESH),
    _group(BLOCKING, "pickle", "load", "reads a file", FRESH),
    _group(BLOCKING, "os", "listdir scandir stat lstat statvfs walk readlink access getxattr", "reads the "
           "disk", FRESH),
    _group(BLOCKING, "posixpath", "exists getsize getmtime isfile isdir islink realpath", "reads the disk",
           FRESH),
    _group(BLOCKING, "genericpath", "exists getsize getmtime isfile isdir", "reads the disk", FRESH),
    _group(BLOCKING, "glob", "glob iglob", "reads the disk", FRESH),
    _group(BLOCKING, "shutil", "disk_usage which", "reads the disk", FRESH),
    _group(BLOCKING, "pathlib.Path", "read_text read_bytes exists stat iterdir glob rglob is_file is_dir",
           "reads a file", FRESH),
    _group(BLOCKING, "urllib.request", "urlopen", _OUTSIDE, FRESH),
    _group(BLOCKING, "socket", "create_connection getaddrinfo gethostbyname", _OUTSIDE, FRESH),
    _group(BLOCKING, "linecache", "getline getlines", "reads a file", FRESH),
)

_RANDOM = "draws random numbers, which the training would then not get"
_CASTS = "empties the cache of casts, which all threads share, when it ends"
_SETTING = "changes a setting of the whole process"
CHANGING_GROUPS: tuple[Group, ...] = (
    _group(CHANGING, "random", "*", _RANDOM),
    _group(CHANGING, "numpy.random", "*", _RANDOM),
    _group(CHANGING, "torch.random", "manual_seed seed set_rng_state fork_rng", "changes the random state"),
    _group(CHANGING, "torch", "rand rand_like randn randn_like randint randint_like randperm normal "
           "bernoulli "
           "multinomial poisson dropout seed", _RANDOM),
    _group(CHANGING, "torch", "manual_seed set_rng_state", "changes the random state"),
    _group(CHANGING, "torch", "save", "writes the state, which is only whole between two steps"),
    _group(CHANGING, "torch", "set_grad_enabled set_default_dtype set_default_device set_num_threads "
           "set_printoptions use_deterministic_algorithms set_float32_matmul_precision", _SETTING),
    _group(CHANGING, "torch.cuda", "empty_cache reset_peak_memory_stats ipc_collect set_device manual_seed "
           "manual_seed_all reset_accumulated_memory_stats", "changes the state of the device's memory or "
                                                             "driver"),
    _group(CHANGING, "torch", "autocast", _CASTS, "wrapper"),
    _group(CHANGING, "torch.amp.autocast_mode", "autocast", _CASTS, "wrapper"),
    _group(CHANGING, "gc", "collect freeze unfreeze disable enable set_threshold", "runs or sets the "
           "collector"),
    _group(CHANGING, "torch.nn.utils", "clip_grad_norm_ clip_grad_value_ vector_to_parameters",
           "changes gradients or parameters"),
    _group(CHANGING, "builtins", "setattr delattr", "changes an object"),
    _group(CHANGING, "builtins", "exec eval compile", "runs code that cannot be seen beforehand", "code"),
)

_ALONE = "waits for the other ranks"
COLLECTIVE_MODULES = (
    "torch.distributed", "torch._C._distributed_c10d", "deepspeed.comm", "horovod", "mpi4py",
        "torch.cuda.nccl",
    "torch.ops._c10d_functional", "torch.ops.c10d",
)
"""Whatever is called in these and is not in a group above is collective."""
COLLECTIVE_CLASSES = (
    "torch.nn.parallel.distributed.DistributedDataParallel", "torch.nn.SyncBatchNorm",
    "torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.tensor.DTensor", "torch.distributed.optim.ZeroRedundancyOptimizer",
)
"""Calling one of these, or having one inside of what is called, is collective."""
COLLECTIVE_METHODS = _words(
    "allreduce all_reduce allgather all_gather reduce_scatter reduce broadcast barrier alltoall "
    "all_to_all gather scatter send recv isend irecv full_tensor redistribute consolidate_state_dict "
    "allreduce_coalesced allgather_into_tensor_coalesced reduce_scatter_tensor_coalesced "
    "monitored_barrier recv_anysource _allgather_base _reduce_scatter_base all_reduce_coalesced "
    "all_gather_object broadcast_object_list summon_full_params alltoall_base"
)
"""Methods of a process group or a distributed tensor, by name where the object is not known."""
TENSOR_METHODS_CALLED_ALIKE = frozenset({"gather", "scatter", "reduce", "broadcast", "send"})
"""Those of them that other objects have too: collective only where the receiver is known to be one."""

_ENDS = "ends the process"
_FORKS = "forks the training process"
_BLINDS = "takes away what ends an endless snippet"
_TERMINAL = "waits for a terminal, and a job has none"
REFUSED_GROUPS: tuple[Group, ...] = (
    _group(REFUSED, "os", "_exit abort kill killpg execl execle execlp execlpe execv execve execvp execvpe",
           _ENDS),
    _group(REFUSED, "os", "fork forkpty register_at_fork", _FORKS),
    _group(REFUSED, "pty", "fork spawn", _FORKS),
    _group(REFUSED, "multiprocessing", "Process Pool", _FORKS),
    _group(REFUSED, "multiprocessing.context", "Process ForkProcess", _FORKS),
    _group(REFUSED, "concurrent.futures", "ProcessPoolExecutor", _FORKS),
    _group(REFUSED, "signal", "raise_signal pthread_kill alarm setitimer signal siginterrupt set_wakeup_fd "
           "pthread_sigmask pause sigwait sigwaitinfo sigtimedwait", "sends, takes or waits for signals of "
                                                                     "the job"),
    _group(REFUSED, "sys", "exit", _ENDS),
    _group(REFUSED, "builtins", "exit quit SystemExit", _ENDS),
    _group(REFUSED, "builtins", "input breakpoint help", _TERMINAL),
    _group(REFUSED, "getpass", "getpass", _TERMINAL),
    _group(REFUSED, "pdb", "set_trace run runcall post_mortem pm", _TERMINAL),
    _group(REFUSED, "code", "interact", _TERMINAL),
    _group(REFUSED, "faulthandler", "_sigsegv _sigabrt _sigfpe _read_null _fatal_error _fatal_error_c_thread "
           "_stack_overflow dump_traceback_later disable enable register unregister", _ENDS),
    _group(REFUSED, "sys",
           "settrace setprofile setrecursionlimit _settraceallthreads _setprofileallthreads", _BLINDS),
    _group(REFUSED, "gc", "get_objects", "shows tuples that other threads are still making, and Python then "
           "fails to finish them; `gc.get_referrers(torch.Tensor)` finds all tensors without that"),
    _group(REFUSED, "threading", "settrace setprofile settrace_all_threads setprofile_all_threads", _BLINDS),
)
SETTLED_ATTRIBUTES = frozenset({"grad", "_grad", "saved_tensors"})
"""Of a tensor or of a node of the autograd graph: what is safe to touch only while no backward runs."""
SETTLED_PREFIXES = ("_saved_", "_raw_saved_")
LOOKS_AT_GRADIENTS = "looks at what backward writes without Python's lock"
ADDRESS_READERS = _group(REFUSED, "ctypes", "string_at wstring_at memmove memset cast",
                         "reads or writes memory at an address that is none", "address")
EXITS = ("builtins.SystemExit",)
"""Exceptions whose raising ends a process."""

GROUPS = (*REFUSED_GROUPS, ADDRESS_READERS, *CHANGING_GROUPS, *BLOCKING_GROUPS, *READING_GROUPS)
"""All, the strictest first: of two groups that name one object the first counts."""

NEW_TENSOR_METHODS = frozenset(_NEW_TENSORS.split())
"""Methods of tensors that make a new one, which may then be changed in place."""
STREAM_METHODS = _words("write writelines flush")
"""Methods of the snippet's own output."""
FRESH_METHODS = frozenset(
    (_NEW_TENSORS + " item tolist count index find strip rstrip lstrip split rsplit splitlines lower upper "
        "title "
     "startswith endswith replace join encode decode format ljust rjust zfill partition rpartition isdigit "
     "bit_length is_alive read readline readlines getvalue group groups groupdict hex total_seconds "
     "isoformat "
     "strftime timestamp size dim ndimension numel nelement element_size state_dict keys values items union "
     "difference intersection issubset most_common is_integer as_integer_ratio removeprefix removesuffix "
     "capitalize isalpha casefold get_last_lr get_scale total named_parameters named_buffers parameters "
     "buffers")
    .split()
)
PURE_METHODS = FRESH_METHODS | frozenset(
    (_VIEWS_OF_TENSORS + _ABOUT_TENSORS + _METHODS_OF_TENSORS + " get named_modules modules children "
     "named_children astype transpose getName start end span match search fullmatch findall isoformat "
     "as_posix "
     "with_suffix relative_to is_absolute __len__ __getitem__ __iter__ __contains__ __repr__ __str__").split()
) - {"start"}
"""Methods that are reading by their name where the object is not known but comes from a reading call."""
OWN_METHODS = _words(
    "append appendleft extend extendleft insert add update pop popleft popitem remove discard clear sort "
    "reverse setdefault copy get subtract elements rotate write writelines getvalue seek flush close "
    "difference_update intersection_update move_to_end fill __setitem__ __enter__ __exit__ send throw "
    "__next__"
)
"""Methods that change what they are called on, and may where the snippet made it."""

BLOCKING_METHODS = _words(
    "read_text read_bytes exists stat iterdir glob rglob is_file is_dir communicate wait poll"
)
"""Methods that wait for something outside, by their name, where the snippet made what they are called on."""
ENDING = _words("islice takewhile zip_longest")
"""What makes an end to an endless iterator."""

CHANGING_METHODS = {
    "step": "makes a step of an optimizer or a scheduler",
    "zero_grad": "clears gradients",
    "backward": "adds to gradients",
    "load_state_dict": "replaces the state",
    "train": "changes the mode of modules",
    "eval": "changes the mode of modules",
    "requires_grad_": "changes what gets gradients",
    "register_hook": "leaves a hook in the job",
    "append": "changes a container of the job",
    "update": "changes an object of the job",
    "pop": "takes out of a container of the job",
    "clear": "empties a container of the job",
    "acquire": "takes a lock of the job",
    "join": "waits for a thread of the job",
    "start": "starts a thread or process",
    "set_epoch": "changes the order of the data",
}
"""Why a method is changing, by its name, where no group says it."""

LIBRARIES = ("torch", "numpy")
"""Packages beside the standard library whose own properties and operators are taken to be pure."""
SPECIAL_METHODS = _words(
    "abs add and bool bytes call ceil complex contains delitem dir divmod eq enter exit float floor "
    "floordiv format ge getattr getattribute getitem gt hash iadd index instancecheck int invert iter le "
    "len length_hint lshift lt matmul missing mod mul ne neg next or pos pow radd rand repr reversed "
    "rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem "
    "sizeof str sub torch_function torch_dispatch truediv trunc xor array array_ufunc array_function copy "
    "deepcopy reduce reduce_ex getstate"
)
"""Special methods, without their underscores, that a call of a reading function may run on its arguments."""
LARGEST_RESULT = 10**8
"""Bits of a number, or elements of a sequence, that an expression of constants may make."""
LONGEST_RANGE = 10**9
"""Numbers of a range that a function written in C may run through: nothing ends it before it is done."""
