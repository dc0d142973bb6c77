"""Sound as Qwen2.5-Omni hears it: log-mel spectrograms, their frames and tokens.

``log_mel`` equals transformers' ``WhisperFeatureExtractor`` as ``Qwen2_5OmniProcessor`` calls it:
padded to its longest length, then cut to the frames that the attention mask keeps. Neither the
padding nor anything else of that length is computed here.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from turnwise_jax.data.processor import processor_settings
from turnwise_jax.data.records import Sound
from turnwise_jax.data.tracks import Track
from turnwise_jax.errors import InputError

SLICE_FRAMES = 200  # mel frames that the audio tower attends over: n_window * 2 = 2 s
_FLOOR = 1e-10
_RANGE = 8.0  # log10 units kept below the loudest point
_NAMES = {  # ours -> WhisperFeatureExtractor's
    "rate": "sampling_rate",
    "mel_bins": "feature_size",
    "hop": "hop_length",
    "n_fft": "n_fft",
    "longest": "chunk_length",
}


@dataclass(frozen=True, slots=True)
class SoundSpec:
    """How sound becomes mel frames; the defaults are Qwen2.5-Omni's.

    ``rate``: samples a second. ``hop``: samples from one mel frame to the next. ``n_fft``: samples
    a frame sees. ``longest``: seconds of the longest sound. ``slice_frames``: mel frames that the
    audio tower takes at once.

    Raises:
      InputError: a value that cannot work.
    """

    rate: int = 16000
    mel_bins: int = 128
    hop: int = 160
    n_fft: int = 400
    longest: int = 300
    slice_frames: int = SLICE_FRAMES

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"must be a whole number >= 1, got {value!r}", field=name)
        if self.slice_frames % 4:
            raise InputError("must be a multiple of 4", field="slice_frames")

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> SoundSpec:
        """Reads the feature extractor's settings from a Hugging Face checkpoint directory.

        What they do not name keeps the default. Accepts ``preprocessor_config.json`` and the nested
        form in ``processor_config.json``.

        Raises:
          InputError: no such file, unreadable, or a setting that is not supported.
        """
        file, raw = processor_settings(Path(directory), "feature_extractor")
        for name in ("dither", "padding_value"):
            if raw.get(name):
                raise InputError("only 0 is supported", file=file, field=name)
        given = {ours: raw[theirs] for ours, theirs in _NAMES.items() if theirs in raw}
        try:
            return cls(**given)
        except InputError as error:
            name = _NAMES.get(error.field or "", error.field)
            raise InputError(error.message, file=file, field=name) from error

    def to_dict(self) -> dict[str, object]:
        """The fields of ``preprocessor_config.json`` that transformers and this class read."""
        values = asdict(self)
        return {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "n_samples": self.longest * self.rate,
            "nb_max_frames": self.longest * self.rate // self.hop,
            **{theirs: values[ours] for ours, theirs in _NAMES.items()},
        }


def read_audio(
    path: str | os.PathLike[str], start: float, end: float, *, rate: int = 16000
) -> np.ndarray:
    """What a file's first audio track plays from ``start`` to ``end``.

    Args:
      start, end: seconds, 0 <= start < end; of a video file those of its frames (0 is the first).
      rate: samples a second to give.

    Returns:
      float32[round((end - start) * rate)], the mean of the channels, -1..1. Where the track has
      not begun, has a gap, or is over, there is silence.

    Raises:
      InputError: missing or unreadable file, no audio track, damaged or cut off in that range.
    """
    with Track(path) as track:
        return track.read(start, end, rate)


def sound_samples(sound: Sound, spec: SoundSpec) -> int:
    """Samples of a sound, whatever its file holds.

    Raises:
      InputError: the seconds are no range, or longer than the model can hear at once.
    """
    start, end = sound.start, sound.end
    if not (math.isfinite(end) and 0 <= start < end):
        raise InputError(f"no sound from {start:g} s to {end:g} s: times start at 0 and rise")
    samples = round((end - start) * spec.rate)
    if samples > spec.longest * spec.rate:
        raise InputError(f"a sound of {end - start:g} s exceeds the {spec.longest} s of the model")
    return samples


def sound_frames(sound: Sound, spec: SoundSpec) -> int:
    """Mel frames of a sound: one for each begun ``hop``.

    Raises:
      InputError: as ``sound_samples``, or too short for a single token.
    """
    frames = math.ceil(sound_samples(sound, spec) / spec.hop)
    if sound_tokens(frames) < 1:
        raise InputError(f"a sound of {sound.end - sound.start:g} s is too short to be heard")
    return frames


def sound_tokens(frames: int) -> int:
    """Tokens that the audio tower makes of mel frames: halved by a convolution, then by pooling."""
    return max(0, ((frames - 1) // 2 + 1 - 2) // 2 + 1)


def sound_slices(frames: int, spec: SoundSpec) -> int:
    """Audio slices of a sound."""
    return math.ceil(frames / spec.slice_frames)


def log_mel(samples: np.ndarray, spec: SoundSpec) -> np.ndarray:
    """The log-mel spectrogram of one sound.

    Args:
      samples: float32[n], n at most ``spec.longest`` seconds.

    Returns:
      float32[mel_bins, ceil(n / hop)]: log10 of the mel power, at most 8 below its maximum, plus
      4, divided by 4.
    """
    limit, half = spec.longest * spec.rate, spec.n_fft // 2
    if samples.ndim != 1 or not 0 < len(samples) <= limit:
        raise ValueError(f"need 1..{limit} samples, got {samples.shape}")
    frames = math.ceil(len(samples) / spec.hop)
    # Frames past the last one still reach back into the sound, and their maximum counts.
    heard = min(limit // spec.hop, (len(samples) + half) // spec.hop + 1)
    power = _power(_padded(samples, heard, spec), heard, spec)
    log = np.log10(np.maximum(power @ _mel_filters(spec.rate, spec.n_fft, spec.mel_bins), _FLOOR))
    log = (np.maximum(log, log.max() - _RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(log[:frames].T, np.float32)


def _padded(samples: np.ndarray, frames: int, spec: SoundSpec) -> np.ndarray:
    """The samples that ``frames`` frames centred on multiples of ``hop`` see: mirrored at the start
    (and at the end of a sound of the longest length), silent after the end."""
    half = spec.n_fft // 2
    reach = (frames - 1) * spec.hop + half
    longest = spec.longest * spec.rate
    body = np.zeros(max(min(reach, longest), half + 1), np.float32)
    body[: len(samples)] = samples[: len(body)]
    padded = np.pad(body, (half, max(0, reach - longest)), mode="reflect")
    return padded[: half + reach]


def _power(padded: np.ndarray, frames: int, spec: SoundSpec) -> np.ndarray:
    """Power spectrum of the windowed frames, float64[frames, n_fft / 2 + 1]."""
    window = np.hanning(spec.n_fft + 1)[:-1]
    views = np.lib.stride_tricks.sliding_window_view(padded, spec.n_fft)[:: spec.hop]
    spectrum = np.fft.rfft(views[:frames] * window, axis=-1)
    return spectrum.real**2 + spectrum.imag**2


@lru_cache(maxsize=4)
def _mel_filters(rate: int, n_fft: int, bins: int) -> np.ndarray:
    """Slaney's triangles of equal area from 0 to 8000 Hz, float64[n_fft / 2 + 1, bins]."""
    frequencies = np.linspace(0, rate // 2, n_fft // 2 + 1)[:, None]
    corners = _hertz(np.linspace(_mel(0.0), _mel(8000.0), bins + 2))
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies - left) / (peak - left)
    falling = (right - frequencies) / (right - peak)
    return np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (right - left)


def _mel(hertz: float) -> float:
    """Slaney's scale: linear (200/3 Hz a mel) up to 1000 Hz, then 27 mels to a factor of 6.4."""
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))
