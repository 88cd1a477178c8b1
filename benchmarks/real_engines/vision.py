"""A tiny model with random weights that takes images, whose number of tokens depends on their size."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import model
from .engine import Server
from .launch import LONGEST
from .routed import RoutedProber

IMAGE_TOKEN = 300
IMAGE = f"<{IMAGE_TOKEN}>"
SIDE = 56  # pixels of the squares that the model looks at
PATCH = 14  # pixels
GRID = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE], [3 * SIDE, SIDE], [SIDE, 3 * SIDE]]
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}" + IMAGE + "{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}<assistant>"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlavaNextForConditionalGeneration"],
    "model_type": "llava_next",
    "image_token_index": IMAGE_TOKEN,
    "image_grid_pinpoints": GRID,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "text_config": {key: value for key, value in model.PLAIN.items() if key not in ("architectures", "torch_dtype")},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "projection_dim": 32,
    },
}
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "LlavaNextImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
    "image_grid_pinpoints": GRID,
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_pad": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
PROCESSOR: dict[str, Any] = {
    "processor_class": "LlavaNextProcessor",
    "patch_size": PATCH,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
    "image_token": IMAGE,
}


def write(place: Path) -> Path:
    """A directory that an engine takes for a model that looks at images."""
    files: Mapping[str, Mapping[str, Any]] = {
        "preprocessor_config.json": PREPROCESSOR | {"processor_class": PROCESSOR["processor_class"]},
        "processor_config.json": PROCESSOR,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": LONGEST,
            "eos_token": model.SPECIAL,
            "image_token": IMAGE,
            "chat_template": TEMPLATE,
        },
    }
    return model.write(place, CONFIG, files)


def image(width: int, height: int, seed: int) -> str:
    """A picture of noise, as the URL of its data."""
    random_ = random.Random(seed)
    rows = b"".join(b"\0" + random_.randbytes(3 * width) for _ in range(height))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def chats(prober: RoutedProber, server: Server, seed: int, conversations: int = 6, length: int = 6) -> None:
    """Conversations in which images come, of few sizes and now and then the same again. Last turns are sent twice."""
    random_ = random.Random(seed)
    sizes = [(56, 56), (90, 60), (60, 90), (112, 112), (200, 56)]
    shown = [image(*random_.choice(sizes), seed=at) for at in range(3)]

    def words(most: int) -> dict[str, Any]:
        return {"type": "text", "text": "".join(random_.choices("abcdefgh ", k=random_.randrange(10, most)))}

    for at in range(conversations):
        messages: list[dict[str, Any]] = []
        if at % 2 == 0:
            messages.append({"role": "system", "content": "You look at pictures. " * 5})
        for turn in range(length):
            content = [words(120)]
            for _ in range(random_.choice((0, 1, 1, 2))):
                if random_.random() < 0.6:
                    shown.append(image(*random_.choice(sizes), seed=len(shown)))
                url = random_.choice(shown[-4:])
                content.insert(random_.randrange(len(content) + 1), {"type": "image_url", "image_url": {"url": url}})
            messages.append({"role": "user", "content": content})
            said = prober.pictured("images", server, messages, stream=turn % 2 == 1)
            if turn + 1 < length:
                messages.append({"role": "assistant", "content": said})
        prober.pictured("images", server, messages, stream=False)
