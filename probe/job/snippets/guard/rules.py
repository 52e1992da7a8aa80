"""Rules: how the calls and attributes in a snippet are classed. The guard and docs/guard.md use these lists.

This is an allow-list: only the functions named here as `reading` are; anything named nowhere is `changing`.
The groups of the other classes give a better reason in the answer, or name functions that must not run at
all. Names are resolved to the objects they refer to in this process, so aliases are recognized. Data only,
standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

READING = "reading"
BLOCKING = "blocking"
SETTLED = "settled"
CHANGING = "changing"
COLLECTIVE = "collective"
REFUSED = "refused"

CLASSES = {
    READING: "Only reads. Runs immediately, concurrently with the training.",
    BLOCKING: "Waits for something outside (a file, a program, the network, a device) and changes nothing in "
    "the job. Runs immediately, never on the training thread.",
    SETTLED: "Only reads, but reads gradients or tensors that autograd keeps for backward. Backward writes "
    "these without holding the GIL, and torch's memory is corrupted if another thread accesses one at that "
    "time. Runs on the training thread, between two optimizer steps.",
    CHANGING: "Changes the job, or might: everything that is not known to only read. Runs on the training "
    "thread, between two optimizer steps.",
    COLLECTIVE: "Waits for the other ranks, which do not make the same call: would hang or corrupt the run. "
    "Refused with more than one rank.",
    REFUSED: "Ends or forks the process, disables the watch over the snippet, waits for a terminal, or can "
    "never end. Always refused.",
}
"""Meaning of each class, the mildest first; a snippet has the class of the worst of its parts."""

SEVERITY = {kind: number for number, kind in enumerate(CLASSES)}

# The result of a call, as far as the guard follows it.
SOMETHING = "data"  # something of a library; may be the job's own
FRESH = "fresh"  # something new that the job does not have
GATHER = "gather"  # a new iterator over the items of its arguments
CONSUME = "consume"  # a new container of all items of its arguments, at once
PAIR = "pair"  # a new iterator of tuples of these items
TAKE = "take"  # one of the arguments, or one of their items
LOOK = "look"  # like SOMETHING, and runs no code of its arguments
SHOW = "show"  # the text of its arguments


class Group(NamedTuple):
    """Functions of one module, or methods of one class, with the same class."""

    kind: str
    of: str
    """A module or a class, by its dotted name."""
    names: tuple[str, ...]
    """`*`: all of them."""
    why: str
    gives: str = SOMETHING
    """One of the words above, or the name of a special treatment in `special`."""


def _group(kind: str, why: str, gives: str, of: str, names: str) -> Group:
    return Group(kind, of, tuple(names.split()), why, gives)


def _groups(table: str) -> Iterator[Group]:
    """After `= class: why` each row has the result of a call, modules or classes, and names in them."""
    kind = why = ""
    for row in table.replace("\n    ", " ").strip().splitlines():
        head, _, rest = row.partition(": ")
        gives, *owners = head.split()
        if gives == "=":
            kind, why = owners[0], rest
        else:
            yield from (_group(kind, why, gives, of, rest) for of in owners)


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_NEW_TENSORS = """
abs absolute add all allclose amax amin aminmax angle any argmax argmin argsort argwhere bincount bitwise_and
bitwise_not bitwise_or bitwise_xor bmm ceil clamp clip clone corrcoef cos cosh count_nonzero cov cross cummax
cummin cumprod cumsum det diff dist div divide dot eq equal erf exp exp2 expm1 flip float_power floor
floor_divide fmax fmin fmod frac gather ge greater gt histc histogram hypot index_select inner inverse
isclose isfinite isinf isnan isneginf isposinf isreal kron kthvalue le lerp less lgamma log log10 log1p log2
log_softmax logaddexp logical_and logical_not logical_or logical_xor logsumexp lt masked_fill masked_select
matmul max maximum mean median min minimum mm mode msort mul multiply mv nan_to_num nanmean nanmedian
nanquantile nansum ne neg negative nonzero norm not_equal outer pow prod quantile reciprocal remainder
repeat_interleave roll round rsqrt scatter scatter_add sigmoid sign signbit sin sinh softmax sort sqrt square
std sub subtract sum take take_along_dim tan tanh tile topk trace tril triu true_divide trunc unique
unique_consecutive var where xlogy
"""
_FUNCTIONS_OF_TENSORS = """
arange bucketize cat cdist column_stack combinations concat cosine_similarity dstack empty empty_like eye
full full_like hstack isin linspace logspace ones ones_like pairwise_distance searchsorted stack std_mean
trapezoid trapz vander var_mean vstack zeros zeros_like
"""
_VIEWS_OF_TENSORS = """
adjoint as_strided broadcast_to chunk conj detach diag diagonal flatten imag moveaxis movedim narrow permute
ravel real reshape select split squeeze swapaxes t tensor_split transpose unbind unflatten unsqueeze
is_complex is_conj is_floating_point is_inference is_nonzero is_same_size is_signed numel
"""
_METHODS_OF_TENSORS = """
T H mT mH bfloat16 bool byte char cpu cuda data_ptr dim double element_size expand expand_as float get_device
half int is_coalesced is_contiguous is_pinned is_shared item long ndimension nelement new_empty new_full
new_ones new_tensor new_zeros numpy repeat reshape_as short size sparse_dim storage_offset stride to to_dense
tolist type type_as unfold untyped_storage view view_as nbytes coalesce indices values contiguous __len__
__getitem__ __iter__ __contains__
"""
_NUMPY = """
abs absolute all allclose amax amin any arange argmax argmin argsort argwhere array array_equal average
bincount ceil clip concatenate corrcoef cos count_nonzero cumprod cumsum diff dot exp expm1 eye floor full
histogram hstack isclose isfinite isinf isnan linspace log log10 log1p log2 logical_and logical_not
logical_or matmul max maximum mean median min minimum nanmax nanmean nanmin nanstd nansum nonzero ones
ones_like percentile prod quantile round shape sign sin sort sqrt square stack std subtract sum tanh unique
var vstack zeros zeros_like ndim size float32 float64 float16 int8 int16 int32 int64 bool_ uint8
"""

_TABLE = """
= refused: ends the process
data os: _exit abort kill killpg execl execle execlp execlpe execv execve execvp execvpe
data sys: exit
data builtins: exit quit SystemExit
data faulthandler: _sigsegv _sigabrt _sigfpe _read_null _fatal_error _fatal_error_c_thread _stack_overflow
    dump_traceback_later disable enable register unregister
= refused: forks the training process
data os: fork forkpty register_at_fork
data pty: fork spawn
data multiprocessing: Process Pool
data multiprocessing.context: Process ForkProcess
data concurrent.futures: ProcessPoolExecutor
= refused: sends, handles or waits for signals of the job
data signal: raise_signal pthread_kill alarm setitimer signal siginterrupt set_wakeup_fd pthread_sigmask
    pause sigwait sigwaitinfo sigtimedwait
= refused: waits for a terminal, and a job has none
data builtins: input breakpoint help
data getpass: getpass
data pdb: set_trace run runcall post_mortem pm
data code: interact
= refused: disables what stops an endless snippet
data sys: settrace setprofile setrecursionlimit _settraceallthreads _setprofileallthreads
data threading: settrace setprofile settrace_all_threads setprofile_all_threads
= refused: exposes tuples that other threads are still building; `gc.get_referrers(torch.Tensor)` finds all
    tensors without that
data gc: get_objects
= refused: may read or write memory at an invalid address
special ctypes: string_at wstring_at memmove memset cast
= changing: takes random numbers from the training's generators
data random numpy.random: *
data torch: rand rand_like randn randn_like randint randint_like randperm normal bernoulli multinomial
    poisson dropout seed
= changing: changes the random state
data torch.random: manual_seed seed set_rng_state fork_rng
data torch: manual_seed set_rng_state
= changing: writes the state, which is consistent only between two steps
data torch: save
= changing: changes a setting of the whole process
data torch: set_grad_enabled set_default_dtype set_default_device set_num_threads set_printoptions
    use_deterministic_algorithms set_float32_matmul_precision
= changing: changes the state of the device's memory or driver
data torch.cuda: empty_cache reset_peak_memory_stats ipc_collect set_device manual_seed manual_seed_all
    reset_accumulated_memory_stats
data torch.xpu: empty_cache reset_peak_memory_stats set_device manual_seed manual_seed_all
    reset_accumulated_memory_stats
data torch.mps: empty_cache manual_seed
= changing: when it ends, empties the cache of casts, which all threads share
wrapper torch torch.amp.autocast_mode: autocast
= changing: runs or configures the garbage collector
data gc: collect freeze unfreeze disable enable set_threshold
= changing: changes gradients or parameters
data torch.nn.utils: clip_grad_norm_ clip_grad_value_ vector_to_parameters
= changing: changes an object
data builtins: setattr delattr
= changing: runs code that cannot be checked beforehand
special builtins: exec eval compile
= blocking: runs a program
fresh subprocess: run check_output check_call call getoutput getstatusoutput Popen
fresh os: system popen posix_spawn posix_spawnp
= blocking: waits
fresh time: sleep
= blocking: reads a file
fresh torch torch.jit pickle: load
fresh numpy: load loadtxt genfromtxt
fresh pathlib.Path: read_text read_bytes exists stat iterdir glob rglob is_file is_dir
fresh linecache: getline getlines
= blocking: waits for the device
fresh torch.cuda: synchronize list_gpu_processes
fresh torch.xpu torch.mps torch.accelerator: synchronize
= blocking: reads the disk
fresh os: listdir scandir stat lstat statvfs walk readlink access getxattr
fresh posixpath: exists getsize getmtime isfile isdir islink realpath
fresh genericpath: exists getsize getmtime isfile isdir
fresh glob: glob iglob
fresh shutil: disk_usage which
= blocking: waits for something outside the job
fresh urllib.request: urlopen
fresh socket: create_connection getaddrinfo gethostbyname
= reading: reads
fresh builtins: abs all any bin bool bytes chr complex divmod float hash hex int len oct ord round sum
    bytearray
special builtins: getattr hasattr type vars globals locals iter next pow range open __import__
special importlib: import_module
special builtins.str: format format_map
consume builtins: list tuple set frozenset dict sorted
gather builtins: reversed filter map
pair builtins: enumerate zip
take builtins: max min
look builtins: callable id isinstance issubclass dir object super property staticmethod
    classmethod
show builtins: print str repr ascii format
fresh builtins.str builtins.bytes builtins.int builtins.float builtins.complex builtins.bool builtins.tuple
    math: *
gather builtins.tuple: __iter__ __getitem__
gather builtins.list collections.deque: copy __iter__ __reversed__
take builtins.list collections.deque builtins.range: __len__ __getitem__ __contains__ count index
gather builtins.dict: copy keys values __iter__
pair builtins.dict types.MappingProxyType os._Environ: items
take builtins.dict: get __getitem__
fresh builtins.dict: __len__ __contains__ fromkeys
gather builtins.set builtins.frozenset: copy difference intersection union symmetric_difference __iter__
gather builtins.range builtins.bytearray types.MappingProxyType os._Environ: __iter__ __len__ __getitem__
    __contains__
gather types.MappingProxyType os._Environ: keys values get
pair collections.Counter: most_common
consume collections: Counter OrderedDict deque defaultdict
fresh collections: namedtuple
gather itertools: chain islice compress
pair itertools: tee pairwise batched
endless itertools: count cycle repeat
getter operator: itemgetter
fresh operator: add sub mul truediv floordiv mod neg eq ne lt le gt ge contains not_ truth
fresh statistics: mean fmean median mode stdev pstdev variance pvariance quantiles
fresh time: time time_ns monotonic perf_counter perf_counter_ns monotonic_ns process_time strftime localtime
    gmtime ctime
fresh datetime: datetime timedelta date time
fresh datetime.datetime: now utcnow fromtimestamp isoformat strftime today timestamp
show json: dumps loads load
show pprint: pprint pformat pp
fresh re: compile escape findall finditer fullmatch match search split sub
fresh io: StringIO BytesIO
fresh pathlib: Path PurePath PosixPath
fresh os: getpid getppid getcwd cpu_count getloadavg uname getuid getgid sched_getaffinity times fspath
    getenv
fresh posixpath: join basename dirname split splitext abspath normpath isabs
fresh platform: node platform python_version machine release system processor uname
look sys: getsizeof getrefcount getrecursionlimit getswitchinterval exc_info _current_frames _getframe
data threading: enumerate active_count current_thread main_thread get_ident get_native_id
fresh threading.Thread: is_alive getName isDaemon
anything gc: get_referrers get_referents
data gc: get_count get_stats get_threshold isenabled is_tracked
look inspect: getsource getsourcelines getsourcefile getfile getdoc signature getmro isfunction isclass
    ismethod ismodule getattr_static currentframe stack
data traceback: format_stack format_exc print_exc print_stack extract_stack format_list format_exception
    format_tb
fresh resource: getrusage getrlimit
fresh contextlib: suppress nullcontext
fresh torch: tensor scalar_tensor is_tensor device dtype Size finfo iinfo Generator
data torch: einsum meshgrid tensordot as_tensor from_numpy get_default_dtype get_default_device
    get_num_threads get_num_interop_threads get_rng_state initial_seed is_grad_enabled
    is_inference_mode_enabled is_autocast_enabled is_anomaly_enabled are_deterministic_algorithms_enabled
    get_float32_matmul_precision get_autocast_dtype can_cast result_type
wrapper torch: no_grad enable_grad inference_mode
fresh torch.linalg: norm vector_norm matrix_norm svd svdvals eigh eigvalsh eigvals det slogdet matrix_rank
    cond inv qr cholesky
fresh torch.nn.functional: softmax log_softmax relu gelu sigmoid tanh silu softplus cross_entropy mse_loss
    l1_loss nll_loss cosine_similarity normalize one_hot linear layer_norm
data torch.cuda: is_available is_initialized device_count current_device get_device_name
    get_device_capability get_device_properties memory_allocated max_memory_allocated memory_reserved
    max_memory_reserved memory_stats memory_summary memory_snapshot mem_get_info utilization temperature
    power_draw clock_rate get_rng_state get_arch_list is_bf16_supported current_stream default_stream
data torch.xpu: is_available is_initialized device_count current_device get_device_name
    get_device_capability get_device_properties memory_allocated max_memory_allocated memory_reserved
    max_memory_reserved memory_stats get_rng_state current_stream
data torch.mps: is_available device_count current_allocated_memory driver_allocated_memory
    recommended_max_memory get_rng_state
data torch.accelerator: is_available device_count current_accelerator current_stream memory_allocated
    max_memory_allocated memory_reserved max_memory_reserved memory_stats
data torch.distributed: is_available is_initialized is_backend_available get_rank get_world_size get_backend
    is_nccl_available is_gloo_available is_mpi_available is_torchelastic_launched get_process_group_ranks
    get_node_local_rank
fresh torch.nn.Module: parameters buffers
named torch.nn.Module: named_parameters named_buffers
modules torch.nn.Module: modules children named_modules named_children get_submodule
state torch.nn.Module: state_dict
data torch.nn.Module: get_parameter get_buffer extra_repr _get_name
modules torch.nn.Sequential torch.nn.ModuleList torch.nn.ModuleDict: __iter__ __getitem__ __len__
modules torch.nn.ModuleDict: __contains__ keys values items
fresh torch.nn.utils: parameters_to_vector get_total_norm
fresh torch.optim.Optimizer: state_dict
fresh torch.optim.lr_scheduler.LRScheduler torch.optim.lr_scheduler.ReduceLROnPlateau: state_dict
data torch.optim.lr_scheduler.LRScheduler torch.optim.lr_scheduler.ReduceLROnPlateau: get_last_lr
fresh torch.amp.grad_scaler.GradScaler: get_scale get_growth_factor get_backoff_factor get_growth_interval
    is_enabled state_dict
fresh torch.utils.data.DataLoader: __len__
fresh numpy: where
data numpy: asarray ravel reshape squeeze transpose trace
fresh numpy.linalg: norm svd eigh eigvalsh det inv matrix_rank
data numpy.ndarray: all any argmax argmin argsort astype copy cumsum diagonal dot flatten item max mean min
    nonzero prod ravel reshape round squeeze std sum tolist trace transpose var view __len__ __getitem__
    __iter__ __contains__
"""
COLLECTIVE_MODULES = (
    "torch.distributed", "torch._C._distributed_c10d", "deepspeed.comm", "horovod", "mpi4py",
    "torch.cuda.nccl", "torch.ops._c10d_functional", "torch.ops.c10d",
)
"""Any call into these modules that is not in a group above is collective."""
COLLECTIVE_CLASSES = (
    "torch.nn.parallel.distributed.DistributedDataParallel", "torch.nn.SyncBatchNorm",
    "torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.FSDPModule",
    "torch.distributed.tensor.DTensor", "torch.distributed.optim.ZeroRedundancyOptimizer",
)
"""Calling one of these, or a module that contains one, is collective."""
COLLECTIVE_METHODS = _words("""
allreduce all_reduce allgather all_gather reduce_scatter reduce broadcast barrier alltoall all_to_all gather
scatter send recv isend irecv full_tensor redistribute consolidate_state_dict allreduce_coalesced
allgather_into_tensor_coalesced reduce_scatter_tensor_coalesced monitored_barrier recv_anysource
_allgather_base _reduce_scatter_base all_reduce_coalesced all_gather_object broadcast_object_list
summon_full_params alltoall_base
""")
"""Methods of a process group or a distributed tensor, by name if the object is not known."""
TENSOR_METHODS_CALLED_ALIKE = frozenset({"gather", "scatter", "reduce", "broadcast", "send"})
"""Names among them that other objects have too: collective only if the receiver is known to be one."""


SETTLED_ATTRIBUTES = frozenset({"grad", "_grad", "saved_tensors"})
"""Attributes of a tensor or of a node of the autograd graph that are safe only while no backward runs."""
SETTLED_PREFIXES = ("_saved_", "_raw_saved_")
LOOKS_AT_GRADIENTS = "reads data that backward writes without holding the GIL"
GROUPS = (
    *_groups(_TABLE),
    _group(READING, "reads", FRESH, "torch", _NEW_TENSORS + _FUNCTIONS_OF_TENSORS),
    _group(READING, "reads", SOMETHING, "torch", _VIEWS_OF_TENSORS),
    _group(READING, "reads", FRESH, "torch.Tensor", _NEW_TENSORS),
    _group(READING, "reads", SOMETHING, "torch.Tensor", _VIEWS_OF_TENSORS + _METHODS_OF_TENSORS),
    _group(READING, "reads", FRESH, "numpy", _NUMPY),
)
"""All groups, the strictest first: of two groups that name one object the first counts."""
REFUSED_GROUPS = tuple(group for group in GROUPS if group.kind == REFUSED and group.of != "ctypes")
"""Groups that also must not be called while a snippet runs; with `ctypes` the address decides."""

NEW_TENSOR_METHODS = _words(_NEW_TENSORS)
"""Methods of tensors that make a new one, which may then be changed in place."""
STREAM_METHODS = _words("write writelines flush")
"""Methods of the snippet's own output."""
FRESH_METHODS = NEW_TENSOR_METHODS | _words("""
item tolist count index find strip rstrip lstrip split rsplit splitlines lower upper title startswith
endswith  replace encode decode format ljust rjust zfill partition rpartition isdigit bit_length is_alive
read  readline readlines getvalue group groups groupdict hex total_seconds isoformat strftime timestamp size
dim  ndimension numel nelement element_size state_dict keys values items union difference intersection
issubset  most_common is_integer removeprefix removesuffix capitalize isalpha casefold get_scale
total  named_parameters named_buffers parameters buffers
""")
PURE_METHODS = FRESH_METHODS | _words(_VIEWS_OF_TENSORS, _METHODS_OF_TENSORS, """
get named_modules modules children named_children astype getName end span match search fullmatch findall
get_last_lr as_posix with_suffix relative_to is_absolute __repr__ __str__
""")
"""Methods that are reading by their name if the object is not known but comes from a reading call."""
CONTAINERS_CHANGE = frozenset({"add", "sort", "subtract"})
"""Names among them that change a container or an array: reading only on a known tensor."""
OWN_METHODS = _words("""
append appendleft extend extendleft insert add update pop popleft popitem remove discard clear sort reverse
setdefault copy get subtract elements rotate write writelines getvalue seek flush close difference_update
intersection_update move_to_end fill __setitem__ __enter__ __exit__ send throw __next__
""")
"""Methods that change their object, which they may if the snippet made it."""
NEVER_ON_OWN = _words("""
set_ share_memory_ random_ uniform_ normal_ log_normal_ bernoulli_ cauchy_ exponential_ geometric_
""")
"""In-place methods that change the job even on the snippet's own tensors: these share memory with another
tensor, or draw from the job's random numbers."""
BLOCKING_METHODS = _words("""
read_text read_bytes exists stat iterdir glob rglob is_file is_dir communicate wait poll
""")
"""Methods that wait for something outside, by their name, if the snippet made their object."""
REFLECTION = _words("""
__dict__ __globals__ __builtins__ __closure__ __subclasses__ f_globals f_locals gi_frame tb_frame f_back
__self__ __func__ __wrapped__ __defaults__ __kwdefaults__ __code__
""")
"""Attributes that lead from any object to everything else."""

CHANGING_METHODS = {
    "step": "steps an optimizer or a scheduler",
    "zero_grad": "clears gradients",
    "backward": "adds to gradients",
    "load_state_dict": "replaces the state",
    "train": "changes the mode of modules",
    "eval": "changes the mode of modules",
    "requires_grad_": "changes which tensors get gradients",
    "register_hook": "leaves a hook in the job",
    "append": "changes a container of the job",
    "update": "changes an object of the job",
    "pop": "removes from a container of the job",
    "clear": "empties a container of the job",
    "acquire": "takes a lock of the job",
    "join": "waits for a thread of the job",
    "start": "starts a thread or process",
    "set_epoch": "changes the order of the data",
}
"""Why a method is changing, by its name, if no group gives a reason."""

LIBRARIES = ("torch", "numpy")
"""Packages besides the standard library whose own properties and operators count as pure."""
SPECIAL_METHODS = _words("""
abs add and bool bytes ceil complex contains dir divmod eq float floor floordiv format ge getattr
getattribute  getitem gt hash iadd index instancecheck subclasscheck int invert iter le len length_hint
lshift lt matmul missing  mod mul ne neg next or pos pow radd rand repr reversed rfloordiv rlshift rmatmul
rmod rmul ror round rpow  rrshift rshift rsub rtruediv rxor sizeof str sub torch_function torch_dispatch
truediv trunc xor array  array_ufunc array_function call fspath
""")
"""Special methods, without their underscores, that a call of a reading function may run on its arguments."""
ASKED_OF_CLASSES = _words("instancecheck subclasscheck getattribute dir sizeof")
"""Those that are run even by functions that run no other code of their arguments (`isinstance`)."""
LARGEST_RESULT = 10**8
"""Bits of a number, or elements of a sequence, that an expression of constants may make."""
LONGEST_RANGE = 10**9
"""Numbers of a range that a function written in C may iterate over: nothing can stop it early."""
