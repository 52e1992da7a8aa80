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
SHARED = "shared"  # something that may be, or hold, its arguments
FRESH = "fresh"  # something new that nobody else has
HOLDS = "holds"  # something new that holds its arguments, or what is in them
LOOK = "look"  # something new; touches its arguments in no way that runs code of theirs
SHOW = "show"  # the text of its arguments
CALLS = "calls"  # like HOLDS, and calls its first argument
TENSORS = "tensors"  # something new that holds tensors of the job
ANYTHING = "anything"  # something new that holds whatever


class Group(NamedTuple):
    """Functions of one module, or methods of one class, that are classed alike."""

    kind: str
    of: str
    """A module or a class, by its dotted name."""
    names: tuple[str, ...]
    """`*`: all there are."""
    why: str
    gives: str = FRESH


def _groups(kind: str, why: str, names_of: dict[str, str], gives: str = FRESH) -> tuple[Group, ...]:
    """One group for each module or class; several that have the same names share a key."""
    return tuple(
        Group(kind, of, tuple(names.split()), why, gives)
        for several, names in names_of.items() for of in several.split()
    )


def words(text: str) -> frozenset[str]:
    """The words in a text."""
    return frozenset(text.split())


_NEW_TENSORS = """
abs add all allclose amax amin aminmax any argmax argmin argsort argwhere bincount bitwise_and bitwise_not
bitwise_or bmm ceil clamp clip clone cos count_nonzero cov cummax cumprod cumsum diff dist div dot eq equal
erf exp expm1 flip floor floor_divide fmod gather ge gt histc histogram index_select inner inverse isclose
isfinite isinf isnan kron kthvalue le lerp lgamma log log10 log1p log2 log_softmax logical_and logical_not
logical_or logical_xor logsumexp lt masked_fill masked_select matmul max maximum mean median min minimum mm
mode mul mv nan_to_num nanmean nanmedian nanquantile nansum ne neg nonzero norm outer pow prod quantile
reciprocal remainder repeat_interleave roll round rsqrt scatter sigmoid sign sin softmax sort sqrt square std
sub sum svd take tanh tile topk trace tril triu trunc unique unique_consecutive var where
"""
_FUNCTIONS_OF_TENSORS = """
arange bucketize cat column_stack concat cosine_similarity empty eye full full_like isin linspace logspace
ones ones_like searchsorted stack std_mean var_mean zeros zeros_like empty_like tensor is_tensor device dtype
Size finfo iinfo get_default_dtype get_num_threads initial_seed is_grad_enabled is_autocast_enabled no_grad
are_deterministic_algorithms_enabled get_float32_matmul_precision enable_grad inference_mode
"""
_VIEWS_OF_TENSORS = """
chunk detach diag diagonal flatten imag movedim narrow permute ravel real reshape select split squeeze t
transpose unbind unflatten unsqueeze is_complex is_floating_point numel
"""
_METHODS_OF_TENSORS = """
bfloat16 bool byte char cpu data_ptr dim double element_size expand expand_as float get_device half int
is_contiguous is_pinned item long ndimension nelement new_empty new_full new_ones new_tensor new_zeros numpy
repeat short size storage_offset stride to tolist type unfold view view_as cuda contiguous __len__
__getitem__ __iter__ __contains__
"""
_NUMPY = """
abs all allclose any arange argmax argmin argsort array array_equal bincount clip concatenate cumsum diff dot
exp histogram isfinite isinf isnan linspace log mean median ones percentile quantile sqrt stack std sum
unique var where zeros max min maximum minimum float32 float64 int32 int64 round
"""
_LOOKS_AT = "__iter__ __len__ __contains__"
_LOOKS_AT_SEQUENCE = f"{_LOOKS_AT} __getitem__ count index"
_LOOKS_AT_SET = f"{_LOOKS_AT} copy difference intersection union isdisjoint issubset issuperset"
_LOOKS_AT_MAPPING = f"{_LOOKS_AT} __getitem__ copy keys values items get"
READING_GROUPS: tuple[Group, ...] = (
    *_groups(READING, "looks", {
        "builtins": "abs all any bin bool bytes chr complex divmod float hash hex int oct ord round slice "
        "sum bytearray pow range open __import__ getattr hasattr type vars",
        "importlib": "import_module",
        "builtins.bytes": "decode hex",
        "builtins.int builtins.float builtins.complex builtins.bool": "*",
        "builtins.str": "find strip rstrip lstrip split rsplit splitlines lower upper startswith endswith "
        "replace join encode ljust rjust zfill partition rpartition isdigit removeprefix removesuffix count "
        "index __len__ __iter__ __getitem__ __contains__ format format_map",
        "io.TextIOWrapper io.BufferedReader": "read readline readlines",
        "re.Match": "group groups groupdict start end span",
        "collections": "namedtuple",
        "itertools": "count",
        "operator": "itemgetter add sub mul truediv floordiv mod neg eq ne lt le gt ge contains not_ truth",
        "math": "*",
        "statistics": "mean median stdev pstdev quantiles",
        "time": "time time_ns monotonic perf_counter process_time strftime localtime ctime",
        "datetime": "datetime timedelta date time",
        "datetime.datetime": "now utcnow fromtimestamp isoformat strftime today timestamp",
        "re": "compile escape findall finditer fullmatch match search split sub",
        "io": "StringIO BytesIO",
        "pathlib": "Path",
        "os": "getpid getppid getcwd cpu_count getloadavg uname getuid sched_getaffinity times getenv",
        "posixpath": "join basename dirname split splitext abspath normpath isabs",
        "platform": "node platform python_version",
        "threading.Thread": "is_alive getName isDaemon",
        "resource": "getrusage getrlimit",
        "torch": _NEW_TENSORS + _FUNCTIONS_OF_TENSORS,
        "torch.Tensor": _NEW_TENSORS,
        "torch.linalg": "norm vector_norm matrix_norm svdvals matrix_rank cond",
        "torch.nn.functional": "softmax log_softmax cross_entropy mse_loss cosine_similarity",
        "torch.distributed": "is_available is_initialized get_rank get_world_size get_backend "
        "is_nccl_available is_gloo_available get_process_group_ranks",
        "torch.nn.utils": "parameters_to_vector get_total_norm",
        "torch.optim.lr_scheduler.LRScheduler torch.optim.lr_scheduler.ReduceLROnPlateau": "get_last_lr",
        "torch.amp.grad_scaler.GradScaler": "get_scale is_enabled state_dict",
        "torch.utils.data.DataLoader": "__len__",
        "numpy": _NUMPY,
    }),
    *_groups(READING, "looks", {
        "builtins": "list tuple set frozenset dict sorted reversed enumerate zip iter",
        "builtins.list builtins.tuple builtins.range builtins.bytearray collections.deque":
        _LOOKS_AT_SEQUENCE,
        "builtins.list": "copy",
        "builtins.set builtins.frozenset": _LOOKS_AT_SET,
        "builtins.dict types.MappingProxyType os._Environ": _LOOKS_AT_MAPPING,
        "collections.Counter": "most_common elements total",
        "collections": "Counter OrderedDict deque ChainMap",
        "itertools": "chain islice tee pairwise batched product permutations combinations zip_longest cycle "
        "repeat compress",
        "itertools.chain": "from_iterable",
        "contextlib": "suppress nullcontext",
        "torch.nn.Module": "modules children named_modules named_children get_submodule",
        "torch.nn.Sequential torch.nn.ModuleList torch.nn.ParameterList": "__iter__ __len__ __getitem__",
        "torch.nn.ModuleDict torch.nn.ParameterDict":
        f"{_LOOKS_AT} __getitem__ keys values items",
        "torch.optim.Optimizer": "state_dict",
        "torch.optim.lr_scheduler.LRScheduler torch.optim.lr_scheduler.ReduceLROnPlateau": "state_dict",
    }, HOLDS),
    *_groups(READING, "looks", {"torch.nn.Module": "parameters buffers named_parameters named_buffers "
             "state_dict"},
             TENSORS),
    *_groups(READING, "looks", {
        "builtins": "max min next", "copy": "copy",
        "sys": "gettrace getprofile exc_info _current_frames _getframe",
        "threading": "enumerate active_count current_thread main_thread get_ident get_native_id",
        "gc": "get_count get_stats get_threshold isenabled is_tracked",
        "torch": f"{_VIEWS_OF_TENSORS} einsum as_tensor from_numpy",
        "torch.Tensor": _VIEWS_OF_TENSORS + _METHODS_OF_TENSORS,
        "torch.cuda": "is_available is_initialized device_count current_device get_device_name "
        "get_device_capability get_device_properties memory_allocated max_memory_allocated memory_reserved "
        "max_memory_reserved memory_stats memory_summary mem_get_info utilization temperature power_draw",
        "torch.nn.Module": "get_parameter get_buffer _get_name",
        "numpy": "asarray reshape squeeze transpose",
        "numpy.ndarray": "all any argmax argmin argsort astype copy cumsum flatten item max mean min nonzero "
        "prod ravel reshape round squeeze std sum tolist transpose var __len__ __getitem__ __iter__",
    }, SHARED),
    *_groups(READING, "looks", {
        "builtins": "callable id len isinstance issubclass dir object",
        "sys": "getsizeof getrefcount getrecursionlimit getswitchinterval getdefaultencoding",
        "inspect": "getsource getsourcelines getsourcefile getfile getdoc signature getmro isfunction "
        "isclass ismethod ismodule isgenerator",
    }, LOOK),
    *_groups(READING, "looks", {
        "builtins": "print str repr ascii format", "json": "dumps loads load", "pprint": "pprint pformat pp",
        "traceback": "format_stack format_exc print_exc print_stack",
    }, SHOW),
    *_groups(READING, "looks", {
        "builtins": "filter map",
        "itertools": "starmap takewhile dropwhile filterfalse",
        "functools": "partial reduce wraps lru_cache cache",
        "collections": "defaultdict",
    }, CALLS),
    *_groups(READING, "looks", {
        "builtins": "locals globals", "gc": "get_referrers get_referents", "inspect": "currentframe stack",
    }, ANYTHING),
)

_OUTSIDE = "waits for something outside of the job"
_DISK = "reads the disk"
_PROGRAM = "runs a program"
_FILE = "reads a file"
BLOCKING_GROUPS: tuple[Group, ...] = (
    *_groups(BLOCKING, _PROGRAM, {
        "subprocess": "run check_output check_call call getoutput getstatusoutput Popen",
        "os": "system popen posix_spawn posix_spawnp",
    }),
    *_groups(BLOCKING, "waits", {"time": "sleep"}),
    *_groups(BLOCKING, "waits for the device", {"torch.cuda": "synchronize list_gpu_processes"}),
    *_groups(BLOCKING, _FILE, {
        "torch torch.jit pickle": "load", "numpy": "load loadtxt genfromtxt", "linecache": "getline getlines",
        "pathlib.Path": "read_text read_bytes exists stat iterdir glob rglob is_file is_dir",
        "subprocess.Popen": "communicate wait poll",
    }),
    *_groups(BLOCKING, _DISK, {
        "os": "listdir scandir stat lstat statvfs walk readlink access getxattr",
        "posixpath genericpath": "exists getsize getmtime isfile isdir islink realpath",
        "glob": "glob iglob", "shutil": "disk_usage which",
    }),
    *_groups(BLOCKING, _OUTSIDE, {
        "urllib.request": "urlopen", "socket": "create_connection getaddrinfo gethostbyname",
    }),
)

_RANDOM = "draws random numbers, which the training would then not get"
CHANGING_GROUPS: tuple[Group, ...] = (
    *_groups(CHANGING, _RANDOM, {
        "random numpy.random": "*",
        "torch": "rand rand_like randn randn_like randint randint_like randperm normal bernoulli multinomial "
        "poisson dropout seed",
    }),
    *_groups(CHANGING, "changes the random state", {
        "torch.random": "manual_seed seed set_rng_state fork_rng", "torch": "manual_seed set_rng_state",
    }),
    *_groups(CHANGING, "writes the state, which is only whole between two steps", {"torch": "save"}),
    *_groups(CHANGING, "changes a setting of the whole process", {
        "torch": "set_grad_enabled set_default_dtype set_default_device set_num_threads set_printoptions "
        "use_deterministic_algorithms set_float32_matmul_precision",
    }),
    *_groups(CHANGING, "changes the state of the device's memory or driver", {
        "torch.cuda": "empty_cache reset_peak_memory_stats ipc_collect set_device manual_seed "
        "manual_seed_all reset_accumulated_memory_stats",
    }),
    *_groups(CHANGING, "empties the cache of casts, which all threads share, when it ends", {
        "torch torch.amp.autocast_mode": "autocast",
    }),
    *_groups(CHANGING, "runs or sets the collector", {
        "gc": "collect freeze unfreeze disable enable set_threshold",
    }),
    *_groups(CHANGING, "changes gradients or parameters", {
        "torch.nn.utils": "clip_grad_norm_ clip_grad_value_ vector_to_parameters",
    }),
    *_groups(CHANGING, "changes an object", {"builtins": "setattr delattr"}),
    *_groups(CHANGING, "runs code that cannot be seen beforehand", {"builtins": "exec eval compile"}),
)

COLLECTIVE_MODULES = (
    "torch.distributed", "torch._C._distributed_c10d", "deepspeed.comm", "horovod", "mpi4py",
    "torch.cuda.nccl", "torch.ops._c10d_functional", "torch.ops.c10d",
)
"""Whatever is called in these and is not in a group above is collective."""
COLLECTIVE_CLASSES = (
    "torch.nn.parallel.distributed.DistributedDataParallel", "torch.nn.SyncBatchNorm",
    "torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.tensor.DTensor", "torch.distributed.optim.ZeroRedundancyOptimizer",
)
"""Calling one of these, or having one inside of what is called, is collective."""
TENSOR_METHODS_CALLED_ALIKE = frozenset({"gather", "scatter", "reduce", "broadcast", "send"})
"""Methods of a process group that other objects have too: collective only where the receiver is one."""
COLLECTIVE_METHODS = TENSOR_METHODS_CALLED_ALIKE | words(
    "allreduce all_reduce allgather all_gather reduce_scatter barrier alltoall all_to_all recv isend irecv "
    "full_tensor redistribute consolidate_state_dict allreduce_coalesced allgather_into_tensor_coalesced "
    "reduce_scatter_tensor_coalesced monitored_barrier recv_anysource _allgather_base _reduce_scatter_base "
    "all_reduce_coalesced all_gather_object broadcast_object_list summon_full_params alltoall_base"
)
"""Methods of a process group or a distributed tensor, by name where the object is not known."""

_ENDS = "ends the process"
_FORKS = "forks the training process"
_TERMINAL = "waits for a terminal, and a job has none"
REFUSED_GROUPS: tuple[Group, ...] = (
    *_groups(REFUSED, _ENDS, {
        "os": "_exit abort kill killpg execl execle execlp execlpe execv execve execvp execvpe",
        "sys": "exit", "builtins": "exit quit SystemExit",
        "faulthandler": "_sigsegv _sigabrt _sigfpe _read_null _fatal_error _fatal_error_c_thread "
        "_stack_overflow dump_traceback_later disable enable register unregister",
    }),
    *_groups(REFUSED, _FORKS, {
        "os": "fork forkpty register_at_fork", "pty": "fork spawn", "multiprocessing": "Process Pool",
        "multiprocessing.context": "Process ForkProcess", "concurrent.futures": "ProcessPoolExecutor",
    }),
    *_groups(REFUSED, "sends, takes or waits for signals of the job", {
        "signal": "raise_signal pthread_kill alarm setitimer signal siginterrupt set_wakeup_fd "
        "pthread_sigmask pause sigwait sigwaitinfo sigtimedwait",
    }),
    *_groups(REFUSED, _TERMINAL, {
        "builtins": "input breakpoint help", "getpass": "getpass", "code": "interact",
        "pdb": "set_trace run runcall post_mortem pm",
    }),
    *_groups(REFUSED, "takes away what ends an endless snippet", {
        "sys": "settrace setprofile setrecursionlimit _settraceallthreads _setprofileallthreads",
        "threading": "settrace setprofile settrace_all_threads setprofile_all_threads",
    }),
    *_groups(REFUSED, "shows tuples that other threads are still making, and Python then fails to finish "
             "them; `gc.get_referrers(torch.Tensor)` finds all tensors without that", {"gc": "get_objects"}),
)
ADDRESS_GROUPS = _groups(REFUSED, "reads or writes memory at an address, which may be none", {
    "ctypes": "string_at wstring_at memmove memset cast",
})
SETTLED_ATTRIBUTES = frozenset({"grad", "_grad", "saved_tensors"})
"""Of a tensor or of a node of the autograd graph: what is safe to touch only while no backward runs."""
SETTLED_PREFIXES = ("_saved_", "_raw_saved_")
LOOKS_AT_GRADIENTS = "looks at what backward writes without Python's lock"

GROUPS = (*REFUSED_GROUPS, *ADDRESS_GROUPS, *CHANGING_GROUPS, *BLOCKING_GROUPS, *READING_GROUPS)
"""All, the strictest first: of two groups that name one object the first counts."""

def _methods(kind: str, gives: str = "", of: str = "") -> frozenset[str]:
    """Names of the methods in groups of a kind, of one class or of all."""
    groups = [one for one in GROUPS if one.kind == kind and (one.of == of if of else one.of in _CLASSES)]
    return frozenset(name for one in groups if gives in ("", one.gives) for name in one.names) - {"*"}


_CLASSES = words("""
builtins.str builtins.bytes datetime.datetime builtins.list builtins.dict builtins.set collections.Counter
torch.Tensor torch.nn.Module pathlib.Path subprocess.Popen threading.Thread io.TextIOWrapper re.Match
""")
PURE_METHODS = _methods(READING) - {"format", "format_map"}
"""Methods that only look, by their name, where the object is not known but comes from a reading call."""
TENSOR_METHODS = _methods(READING, TENSORS)
"""Those that give something new that holds tensors."""
HOLDING_METHODS = _methods(READING, HOLDS) | TENSOR_METHODS
"""Those that give something new that holds parts of what they are called on."""
FRESH_METHODS = PURE_METHODS - _methods(READING, SHARED) - HOLDING_METHODS
"""Those that give something new that is nobody else's."""
MODULE_METHODS = words("keys values items get _get_name").union(
    *(_methods(READING, of=of) for of in ("torch.nn.Module", "builtins.str"))
) - {"format", "format_map"}
"""Those of modules and of their names; a child of a module may well be called like a method of tensors."""
BLOCKING_METHODS = _methods(BLOCKING)
"""Methods that wait for something outside, by their name, where the snippet made what they are called on."""
GROWING_METHODS = words("""
append appendleft extend extendleft insert add update pop popleft popitem remove discard clear sort reverse
setdefault subtract write writelines seek flush close difference_update intersection_update move_to_end
""")
"""Methods that change what they are called on, and may where the snippet made it."""
IN_PLACE_METHODS = words("""
abs_ add_ addcmul_ addcdiv_ ceil_ clamp_ copy_ div_ exp_ fill_ floor_ log_ masked_fill_ mul_ neg_ pow_
reciprocal_ round_ rsqrt_ sigmoid_ sqrt_ square_ sub_ tanh_ zero_
""")
"""Methods that write into a tensor, and may where the snippet made it."""
PLAIN_ATTRIBUTES = words("""
shape dtype device ndim nbytes itemsize T mT H mH real imag data is_leaf requires_grad is_cuda layout grad_fn
training in_features out_features in_channels out_channels num_features num_embeddings embedding_dim
kernel_size stride padding weight bias running_mean running_var num_batches_tracked normalized_shape eps
momentum p name ident native_id daemon __name__ __qualname__ __module__ __doc__ __class__ f_code f_lineno
co_name co_filename stdout stderr returncode values indices lr step days seconds st_size st_mtime free used
total percent tm_hour ru_maxrss total_memory major minor
""")
"""Attributes that may be read of what is not known but comes from a reading call."""

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
SPECIAL_METHODS = words("""
abs add and bool bytes call ceil complex contains delitem dir divmod eq enter exit float floor floordiv
format ge getattr getattribute getitem gt hash iadd index instancecheck int invert iter le len length_hint
lshift lt matmul missing mod mul ne neg next or pos pow radd rand repr reversed rfloordiv rlshift rmatmul
rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem sizeof str sub torch_function
torch_dispatch truediv trunc xor array array_ufunc array_function copy deepcopy reduce reduce_ex getstate
subclasscheck
""")
"""Special methods, without their underscores, that a call of a reading function may run on its arguments."""
LARGEST_RESULT = 10**8
"""Bits of a number, or elements of a sequence, that an expression of constants may make."""
LONGEST_RANGE = 10**9
"""Numbers of a range that a function written in C may run through: nothing ends it before it is done."""
