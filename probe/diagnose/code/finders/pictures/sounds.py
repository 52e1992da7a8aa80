"""Sounds that are read, resampled and turned into spectrograms. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Value,
    alternatives,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_LOADS = ("torchaudio.load", "librosa.load", "soundfile.read", "librosa.core.load", "scipy.io.wavfile.read")
_SAME_RATE = frozenset({
    "part", "mean", "pad", "either", "cat", "rows", "clamp", "div", "mul", "sub", "add", "librosa.util.fix_length", "librosa.util.normalize", "librosa.to_mono",
    "librosa.effects.trim", "librosa.effects.preemphasis", "element", "identity", "roll", "flip", "repeat", "tile", "narrow",
}) | KEPT | SHAPED
"""Operations that leave a sound at its sampling rate."""
_DEFAULT_RATE = 22050
_RATE_ASKED = {
    "librosa.feature.melspectrogram": 0, "librosa.feature.mfcc": 0, "librosa.feature.chroma_stft": 0, "librosa.feature.spectral_contrast": 0,
    "librosa.feature.spectral_centroid": 0, "librosa.cqt": 0, "librosa.feature.chroma_cqt": 0,
}


def resampled_backwards(program: Program) -> Iterator[Remark]:
    """A sound is resampled to the rate that it has, as if it had the rate that it should get."""
    for value in computation_of(program).of("torchaudio.functional.resample", "librosa.resample", "librosa.core.resample", "run"):
        layer = value.args[0] if value.op == "run" and len(value.args) == 2 else None
        if layer is not None and layer.op != "torchaudio.transforms.Resample":
            continue
        sound = value.args[1] if layer is not None else value.argument("waveform", 0) or value.argument("y")
        of, at = (value, 1) if layer is None else (layer, 0)
        old = next((one for name in ("orig_freq", "orig_sr") if (one := of.named.get(name)) is not None), of.argument("orig_freq", at))
        new = next((one for name in ("new_freq", "target_sr") if (one := of.named.get(name)) is not None), of.argument("new_freq", at + 1))
        if sound is None or old is None or new is None:
            continue
        read = _rate_read(new)
        if read is not None and not _has_rate(old, read) and any(one is read for one in _line(sound)):
            yield Remark(value.node, f"{short(value.node)} is told that the sound has the rate {short(old.node)}, and to give it {short(new.node)}, which is the rate that it was read at (line {read.line})")


def _rate_read(value: Value) -> Value | None:
    """The call that reads a sound, of which a value is the rate."""
    value = bare(value)
    if value.op == "part" and len(value.args) == 2 and value.args[0].op in _LOADS:
        place = 0 if value.args[0].op.startswith("scipy") else 1
        return value.args[0] if constant(value.args[1]) == place else None
    return None


def _has_rate(value: Value, read: Value) -> bool:
    return any(one is read for one in origins(value))


def _line(value: Value) -> Iterator[Value]:
    """A sound and what it was before, as long as its rate is the same."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 100:
        at = waiting.pop()
        yield at
        for one in at.args if at.op == "either" else at.args[:1] if at.op in _SAME_RATE else ():
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def read_at_another_rate(program: Program) -> Iterator[Remark]:
    """Features of a sound are computed for another sampling rate than it was read at."""
    said: set[int] = set()
    for value in computation_of(program).of(*_RATE_ASKED):
        sound = value.argument("y", 0)
        asked = value.argument("sr")
        if sound is None or value.line in said or (asked is not None and number(asked) is None):
            continue
        rate = number(asked) if asked is not None else _DEFAULT_RATE
        reads = [one for one in _line(sound) if one.op in ("librosa.load", "librosa.core.load")]
        given = [one.argument("sr", 1) for one in reads]
        if len(reads) != 1 or (given[0] is not None and number(given[0]) is None):
            continue
        known = number(given[0]) if given[0] is not None else _DEFAULT_RATE
        if known != rate:
            said.add(value.line)
            asks = f"for {rate:g} samples a second" + ("" if asked is not None else ", which is its default")
            yield Remark(value.node, f"{short(value.node)} is computed {asks}, and {short(reads[0].node)} (line {reads[0].line}) gives {known:g}" + ("" if given[0] is not None else ", which is its default"))


@FINDERS.add("features-of-another-rate")
def _layer_of_another_rate(program: Program) -> Iterator[Remark]:
    """A sound was resampled to one rate, and the filters of a layer are made for another one."""
    said: set[int] = set()
    for value in computation_of(program).of("run"):
        layer = value.args[0] if len(value.args) == 2 else None
        if layer is None or layer.op not in ("torchaudio.transforms.MelSpectrogram", "torchaudio.transforms.MFCC") or value.line in said:
            continue
        asked = layer.argument("sample_rate", 0)
        wanted = 16000 if asked is None else number(asked)
        given = [(known, one) for one in _line(value.args[1]) if (known := _new_rate(one)) is not None]
        if wanted is not None and len(given) == 1 and given[0][0] != wanted:
            said.add(value.line)
            asks = f"for {wanted:g} samples a second" + ("" if asked is not None else ", which is its default")
            yield Remark(value.node, f"{short(layer.node)} (line {layer.line}) is made {asks}, and {short(given[0][1].node)} (line {given[0][1].line}) gives {given[0][0]:g}")


def _new_rate(value: Value) -> float | None:
    """The rate that a sound has been brought to."""
    if value.op == "torchaudio.functional.resample":
        return number(value.argument("new_freq", 2))
    if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torchaudio.transforms.Resample":
        return number(value.args[0].argument("new_freq", 1))
    return number(value.argument("sr", 1)) if value.op in ("librosa.load", "librosa.core.load") else None


def decibels(program: Program) -> Iterator[Remark]:
    """Squares of amplitudes are taken for amplitudes on the way to decibels, or amplitudes for squares."""
    said: set[int] = set()
    for value in computation_of(program).of("librosa.amplitude_to_db", "librosa.power_to_db", "librosa.core.amplitude_to_db", "librosa.core.power_to_db", "run"):
        layer = value.args[0] if value.op == "run" and len(value.args) == 2 else None
        if layer is not None:
            if layer.op != "torchaudio.transforms.AmplitudeToDB":
                continue
            stype = constant(layer.argument("stype", 0))
            if layer.argument("stype", 0) is not None and not isinstance(stype, str):
                continue
            wants = "amplitudes" if stype == "magnitude" else "squares"
        else:
            wants = "amplitudes" if "amplitude" in value.op else "squares"
        given = value.args[1] if layer is not None else value.argument("S", 0)
        for one in alternatives(given) if given is not None and value.line not in said else ():
            found = _kind(one)
            if found is not None and found[0] != wants:
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} takes {wants}, and {short(found[1].node)} (line {found[1].line}) gives {found[0]}")
                break


def _kind(value: Value) -> tuple[str, Value] | None:
    """Whether a spectrogram holds amplitudes or their squares, and where it is computed."""
    for _ in range(20):
        inner = bare(value, "clamp", "maximum")
        if inner.op == "librosa.feature.melspectrogram":
            return None if "S" in inner.named else _by_power(inner.named.get("power"), inner)
        if inner.op == "run" and len(inner.args) == 2 and inner.args[0].op in ("torchaudio.transforms.MelSpectrogram", "torchaudio.transforms.Spectrogram"):
            return _by_power(inner.args[0].named.get("power"), inner)
        if inner.op in ("pow", "square"):
            two = inner.op == "square" or (len(inner.args) == 2 and number(inner.args[1]) == 2)
            return ("squares", inner) if two and _is_amplitude(inner.args[0]) else None
        if _is_amplitude(inner):
            return ("amplitudes", inner)
        if inner.op != "abs" or not inner.args:
            return None
        value = inner.args[0]
    return None


def _by_power(power: Value | None, of: Value) -> tuple[str, Value] | None:
    known = 2 if power is None else number(power)
    return ("squares", of) if known == 2 else ("amplitudes", of) if known == 1 else None


def _is_amplitude(value: Value) -> bool:
    """Whether a value is the absolute value of a short-time Fourier transform."""
    value = bare(value)
    return value.op == "abs" and bool(value.args) and bare(value.args[0]).op in ("librosa.stft", "stft", "librosa.core.stft")


def joined_at_another_hop(program: Program) -> Iterator[Remark]:
    """Frames of a sound are put together at another distance than they were cut at."""
    said: set[int] = set()
    for value in computation_of(program).of("istft", "librosa.istft", "librosa.core.istft"):
        cuts = [one for one in origins(value.args[0]) if one.op in ("stft", "librosa.stft", "librosa.core.stft")] if value.args else []
        hops = {_hop(one) for one in cuts}
        joined = _hop(value, cuts[0] if cuts else None)
        if len(hops) == 1 and joined is not None and value.line not in said:
            cut = hops.pop()
            if cut is not None and cut != joined:
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} puts the frames together every {joined:g} samples, and {short(cuts[0].node)} (line {cuts[0].line}) cuts them every {cut:g}")


def _hop(value: Value, of: Value | None = None) -> float | None:
    """The distance between two frames: as it is given, or a quarter of their length."""
    torch = not value.op.startswith("librosa")
    given = value.argument("hop_length", 2 if torch or "istft" not in value.op else 1)
    if given is not None and not (given.op == "@constant" and given.data is None):
        return number(given)
    length = value.argument("n_fft", 1) if torch or "istft" not in value.op else (of.argument("n_fft", 1) if of is not None else None)
    if "win_length" in value.named:
        return None
    known = number(length) if length is not None else (None if torch else 2048)
    return None if known is None else known // 4


def joined_by_another_window(program: Program) -> Iterator[Remark]:
    """Frames that were cut out by a window are put together as if they had none, or another one."""
    said: set[int] = set()
    for value in computation_of(program).of("istft"):
        cuts = [one for one in origins(value.args[0]) if one.op == "stft"] if value.args else []
        shapes = {_window(one) for one in (*cuts, value)}
        if cuts and len(shapes) == 2 and None not in shapes and len({_window(one) for one in cuts}) == 1 and value.line not in said:
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)} puts frames together that were cut with {_window(value)}, and {short(cuts[0].node)} (line {cuts[0].line}) cuts them with {_window(cuts[0])}")


def _window(value: Value) -> str | None:
    """The window of a short-time Fourier transform of torch; None where it is not known."""
    given = value.argument("window", 4)
    if given is None or (given.op == "@constant" and given.data is None):
        return "no window"
    given = bare(given)
    return given.op if given.op.endswith("_window") else None


def real_part_alone(program: Program) -> Iterator[Remark]:
    """Of a complex spectrum the real part alone is taken for its size: its logarithm or its square is taken, or it is cast."""
    computation = computation_of(program)
    for value in computation.of("real", "float", "astype", "to", "float32"):
        spectrum = bare(value.args[0]) if value.args else value
        if not _is_complex(spectrum) or any(user.op in ("imag", "angle", "abs", "view_as_real", "conj") for user in computation.users(spectrum)):
            continue
        if value.op in ("astype", "to") and not any("float" in str(one.data) for one in (*value.args[1:], *value.named.values()) if one.op == "@library"):
            continue
        sizes = [one for one in made_from(computation, value, frozenset({"clamp", "add", "abs", "maximum", "mul", "div", "rows", *KEPT, *SHAPED})) if one.op in _SIZES_OF and (one.op != "pow" or number(one.args[1]) == 2)]
        if sizes:
            yield Remark(value.node, f"{short(value.node)} is the real part of {short(spectrum.node)} (line {spectrum.line}) alone, and {short(sizes[0].node)} (line {sizes[0].line}) takes it for the size: how large it is depends on where the wave begins")
            return


_SIZES_OF = ("log", "log10", "log1p", "log2", "pow", "square", "librosa.amplitude_to_db", "librosa.power_to_db", "sqrt")


def _is_complex(value: Value) -> bool:
    """Whether a value is a spectrum of complex numbers."""
    if value.op == "stft":
        return constant(value.named.get("return_complex")) is True
    if value.op in ("librosa.stft", "rfft", "fft", "librosa.core.stft"):
        return bool(value.args) and not any(one.op in ("fft", "rfft", "ifft") for one in origins(value.args[0]))
    return value.op == "part" and len(value.args) == 2 and value.args[0].op == "scipy.signal.stft" and constant(value.args[1]) == 2


def cut_off_before_scaling(program: Program) -> Iterator[Remark]:
    """A sound of 16 bits is cut to -1…1, and was not divided by its largest number before."""
    for value in computation_of(program).of("clamp", "hardtanh"):
        bounds = [number(value.argument("min", 1)), number(value.argument("max", 2))]
        if bounds != [-1, 1] or not value.args:
            continue
        at = value.args[0]
        for _ in range(40):
            if _is_short(at):
                yield Remark(value.node, f"{short(value.node)} cuts whole numbers of 16 bits ({short(at.node)}, line {at.line}) to -1…1: nothing but their sign is left")
                return
            if not at.args or not (at.op in KEPT or at.op in SHAPED or at.op in ("part", "rows", "element", "pad", "roll", "narrow", "cat")) or at.op == "either":
                break
            at = at.args[0]


def _is_short(value: Value) -> bool:
    """Whether a value is made, or read, as whole numbers of 16 bits."""
    told = any((one.op == "@library" and str(one.data).endswith((".int16", ".short"))) or constant(one) in ("int16", "<i2") for one in (*value.args[1:], *value.named.values()))
    return value.op in ("short", "int16") or (told and value.op in ("to", "astype", "type", "frombuffer", "fromfile", "array", "asarray", "tensor", "soundfile.read"))
