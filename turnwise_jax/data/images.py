"""Frames to vision patches: the resize rule, the patch order and the normalisation of Qwen2-VL.

Everything equals transformers' ``Qwen2VLImageProcessorPil``; the patches stay uint8 here and are
normalised on the device, which makes them four times smaller to store and to move.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from turnwise_jax.data.processor import (
    PREPROCESSOR,
    VIDEO_PREPROCESSOR,
    changed_settings,
    processor_settings,
    video_settings,
)
from turnwise_jax.errors import InputError

MAX_ASPECT_RATIO = 200
_WHOLE_VIDEO = "Qwen3VLVideoProcessor"  # it bounds the area of all frames together
_EACH_FRAME = "Qwen2VLVideoProcessor"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


class VideoSize(NamedTuple):
    """Bounds of the resized area of a video: of each frame, or (``whole``, Qwen3-VL) of all of its
    frames together."""

    min_pixels: int
    max_pixels: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """How a frame becomes patches.

    Sizes are in pixels; ``min_pixels`` and ``max_pixels`` bound the area of a resized frame;
    ``resample`` is Pillow's filter number (3 = bicubic). ``video``: other bounds for the frames of
    video turns; those of images if None.

    Raises:
      InputError: a value that cannot work.
    """

    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    image_mean: tuple[float, float, float] = _CLIP_MEAN
    image_std: tuple[float, float, float] = _CLIP_STD
    resample: int = int(Image.Resampling.BICUBIC)
    video: VideoSize | None = None

    def __post_init__(self) -> None:
        for name in ("patch_size", "merge_size", "temporal_patch_size", "min_pixels", "max_pixels"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"must be a whole number >= 1, got {value!r}", field=name)
        if self.min_pixels > self.max_pixels:
            raise InputError(
                f"{self.min_pixels} exceeds max_pixels {self.max_pixels}", field="min_pixels"
            )
        if self.video is not None and not 1 <= self.video.min_pixels <= self.video.max_pixels:
            raise InputError(f"no bounds of an area: {self.video}", field="video")
        for name in ("image_mean", "image_std"):
            value = getattr(self, name)
            if len(value) != 3 or not all(math.isfinite(v) for v in value):
                raise InputError(f"must be three finite numbers, got {value!r}", field=name)
        if min(self.image_std) <= 0:
            raise InputError(f"must be positive, got {self.image_std!r}", field="image_std")
        if self.resample not in list(Image.Resampling):
            raise InputError(f"no such Pillow filter: {self.resample!r}", field="resample")

    @property
    def factor(self) -> int:
        """Side in pixels of the square that one language-model token covers."""
        return self.patch_size * self.merge_size

    @property
    def patch_dim(self) -> int:
        """Length of one flattened patch: channels x frames x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str]) -> FrameSpec:
        """Reads the image processor's settings from a Hugging Face checkpoint directory.

        Accepts ``preprocessor_config.json`` and the nested form in ``processor_config.json``; the
        bounds of videos are those of ``video_preprocessor_config.json``, if it is there.

        Raises:
          InputError: no such file, unreadable, or a setting that is not supported.
        """
        file, raw = processor_settings(Path(directory), "image_processor")
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if raw.get(name, True) is not True:
                raise InputError("only true is supported", file=file, field=name)
        if abs(raw.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9:
            raise InputError("only 1/255 is supported", file=file, field="rescale_factor")
        size = raw.get("size") or {}
        values = {
            "min_pixels": raw.get("min_pixels") or size.get("shortest_edge"),
            "max_pixels": raw.get("max_pixels") or size.get("longest_edge"),
            "image_mean": raw.get("image_mean") and tuple(raw["image_mean"]),
            "image_std": raw.get("image_std") and tuple(raw["image_std"]),
        }
        for name in ("patch_size", "merge_size", "temporal_patch_size", "resample"):
            values[name] = raw.get(name)
        try:
            spec = cls(**{name: value for name, value in values.items() if value is not None})
        except InputError as error:
            raise InputError(error.message, file=file, field=error.field) from error
        return replace(spec, video=_video_size(Path(directory), spec))

    def at_most(self, max_pixels: int) -> FrameSpec:
        """This preprocessing with another ``max_pixels``, of images and of each frame of a video.

        It also takes the place of a bound of a whole video. A ``min_pixels`` above it is dropped.

        Args:
          max_pixels: of a resized frame; 0: everything stays as it is.

        Raises:
          InputError: it is less than one token covers.
        """
        if not max_pixels:
            return self
        least = self.factor**2
        if max_pixels < least:
            raise InputError(
                f"{max_pixels} is too little: one token is {least} pixels; give at least that, or "
                "0 for what the checkpoint says",
                field="data.max_pixels",
            )
        low = self.min_pixels if self.min_pixels <= max_pixels else least
        video = None
        if self.video is not None:
            own = self.video.min_pixels
            video = VideoSize(own if own <= max_pixels else least, max_pixels)
        if video == (low, max_pixels, False):
            video = None
        return replace(self, min_pixels=low, max_pixels=max_pixels, video=video)

    def settings_in(self, directory: str | os.PathLike[str]) -> dict[str, str]:
        """A checkpoint directory's preprocessor files with this one's bounds, name -> text.

        Empty where the files say the same. Other fields, those of sound for instance, stay.

        Raises:
          InputError: see :meth:`from_pretrained`.
        """
        if FrameSpec.from_pretrained(directory) == self:
            return {}
        low, high, whole = self.video or VideoSize(self.min_pixels, self.max_pixels)
        own = {"size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels}}
        videos = {
            "size": {"shortest_edge": low, "longest_edge": high},
            "video_processor_type": _WHOLE_VIDEO if whole else _EACH_FRAME,
        }
        return changed_settings(
            Path(directory),
            own | {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels},
            videos,
            without=("min_pixels", "max_pixels"),
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes ``preprocessor_config.json`` that this class and transformers read."""
        config = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "do_convert_rgb": True,
            "do_resize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
            **{name: value for name, value in asdict(self).items() if name != "video"},
        }
        _write(Path(directory) / PREPROCESSOR, config)
        if self.video is not None:
            low, high, whole = self.video
            config |= {
                "video_processor_type": _WHOLE_VIDEO if whole else _EACH_FRAME,
                "size": {"shortest_edge": low, "longest_edge": high},
            }
            for name in ("image_processor_type", "min_pixels", "max_pixels"):
                del config[name]
            _write(Path(directory) / VIDEO_PREPROCESSOR, config)


class Patches(NamedTuple):
    """Vision input of one image size or one video.

    ``values``: uint8[n_slices, h*w, C*tp*ps*ps], resized, not normalised, in the reference's patch
    order (2x2 merge groups in raster order). ``grid``: (t, h, w) in patches. For images every
    slice is an image of its own and t is 1; for a video t == n_slices.
    """

    values: np.ndarray
    grid: tuple[int, int, int]


def smart_resize(
    height: int, width: int, spec: FrameSpec, *, frames: int | None = None
) -> tuple[int, int]:
    """The size a frame is resized to: multiples of ``spec.factor``, area within the bounds.

    Args:
      height, width: pixels.
      frames: how many the video has that the frame belongs to; None for an image.

    Returns:
      (height, width) in pixels, the reference processors' rule.

    Raises:
      InputError: one side is more than 200 times the other, or a side is empty.
    """
    if min(height, width) < 1:
        raise InputError(f"a frame of {width}x{height} pixels is empty")
    factor, low, high, count, area = spec.factor, spec.min_pixels, spec.max_pixels, 1, 1
    if frames is not None and spec.video is not None:
        low, high, whole = spec.video
        if whole:
            depth = spec.temporal_patch_size
            count, area = frames, max(depth, round(frames / depth) * depth)
            if min(height, width) < factor:
                scale = max(factor / height, factor / width)
                height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise InputError(
            f"a frame of {width}x{height} pixels is too long and thin: one side may be at most "
            f"{MAX_ASPECT_RATIO} times the other"
        )
    rounded = round(height / factor) * factor, round(width / factor) * factor
    area *= rounded[0] * rounded[1]
    if area > high:
        shrink = math.sqrt((count * height * width) / high)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if area < low:
        grow = math.sqrt(low / (count * height * width))
        return (
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return rounded


def frame_grid(
    height: int, width: int, spec: FrameSpec, *, frames: int = 1, video: bool = False
) -> tuple[int, int, int]:
    """Grid (t, h, w) in patches that ``patchify`` will give, from the frame size alone."""
    size = smart_resize(height, width, spec, frames=frames if video else None)
    resized_height, resized_width = size
    slices = math.ceil(frames / spec.temporal_patch_size) if video else 1
    return slices, resized_height // spec.patch_size, resized_width // spec.patch_size


def resize(frame_HWC: np.ndarray, spec: FrameSpec, *, frames: int | None = None) -> np.ndarray:
    """Resizes uint8[H, W, 3] by the rule of ``smart_resize`` with Pillow's filter."""
    height, width = smart_resize(*frame_HWC.shape[:2], spec, frames=frames)
    image = Image.fromarray(np.ascontiguousarray(frame_HWC))
    return np.asarray(image.resize((width, height), Image.Resampling(spec.resample)))


def patchify(frames_FHWC: np.ndarray, spec: FrameSpec, *, video: bool = False) -> Patches:
    """Resizes frames of one size and cuts them into patches.

    Args:
      frames_FHWC: uint8[F, H, W, 3], F >= 1.
      video: False: each frame is an image, repeated over the temporal patch. True: the frames
        are one video, ``temporal_patch_size`` of them a slice, the last one repeated to fill up.

    Returns:
      Patches with F slices (images) or ceil(F / temporal_patch_size) slices (video).

    Raises:
      InputError: a frame too long and thin.
    """
    if frames_FHWC.ndim != 4 or frames_FHWC.shape[-1] != 3 or frames_FHWC.dtype != np.uint8:
        raise TypeError(f"need uint8[F, H, W, 3], got {frames_FHWC.dtype}{frames_FHWC.shape}")
    frames = len(frames_FHWC) if video else None
    resized = [resize(frame, spec, frames=frames) for frame in frames_FHWC]
    return cut(np.stack(resized), spec, video=video)


def cut(resized: np.ndarray, spec: FrameSpec, *, video: bool = False) -> Patches:
    """The second half of ``patchify``: cuts uint8[F, h, w, 3], resized already, into patches."""
    depth, side, merge = spec.temporal_patch_size, spec.patch_size, spec.merge_size
    if video:
        padding = -len(resized) % depth
        frames = np.concatenate([resized, np.repeat(resized[-1:], padding, axis=0)])
    else:
        frames = np.repeat(resized, depth, axis=0)
    h, w = resized.shape[1] // side, resized.shape[2] // side
    blocks = frames.reshape(-1, depth, h // merge, merge, side, w // merge, merge, side, 3)
    # slice, merge row, merge column, row and column inside the merge group | channel, frame, y, x
    values = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, h * w, spec.patch_dim)
    return Patches(values, (len(values) if video else 1, h, w))


def normalise(values: np.ndarray, spec: FrameSpec) -> np.ndarray:
    """(value / 255 - mean) / std of flattened patches.

    Args:
      values: uint8[..., C*tp*ps*ps].

    Returns:
      float32 of the same shape, the reference's ``pixel_values`` within 1e-6.
    """
    per_channel = spec.patch_dim // 3
    mean = np.repeat(np.asarray(spec.image_mean, np.float32), per_channel)
    std = np.repeat(np.asarray(spec.image_std, np.float32), per_channel)
    return (values.astype(np.float32) / np.float32(255) - mean) / std


def _video_size(directory: Path, spec: FrameSpec) -> VideoSize | None:
    """The video processor's bounds; None where they are the image processor's."""
    found = video_settings(directory)
    if found is None:
        return None
    file, raw = found
    for name in ("patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std"):
        value, ours = raw.get(name), getattr(spec, name)
        if value is not None and (tuple(value) if isinstance(value, list) else value) != ours:
            raise InputError(f"is {value} for videos, {ours} for images", file=file, field=name)
    if raw.get("cap_pixels_per_frame"):
        raise InputError("only false is supported", file=file, field="cap_pixels_per_frame")
    size = raw.get("size") or {}
    low = raw.get("min_pixels") or size.get("shortest_edge")
    high = raw.get("max_pixels") or size.get("longest_edge")
    if low is None or high is None:
        return None
    whole = raw.get("video_processor_type") == _WHOLE_VIDEO
    if not all(isinstance(value, int) for value in (low, high)) or not 1 <= low <= high:
        raise InputError(f"no bounds of an area: {low!r} to {high!r}", file=file, field="size")
    if not whole and (low, high) == (spec.min_pixels, spec.max_pixels):
        return None
    return VideoSize(low, high, whole)


def _write(file: Path, config: dict[str, object]) -> None:
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
