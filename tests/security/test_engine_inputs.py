"""Hostile requests to the engine's server: names that climb, inputs without end, adapters that are none.

Each gets a 4xx answer, writes nothing outside the state directory, and the engine goes on serving.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save

from hermes.engine.lora.adapter_tar import unpack
from hermes.engine.lora.peft import matches
from hermes.engine.sampling.stops import Vocabulary
from hermes.engine.types import EngineUserError
from tests.engine.http.engine_process import KEY, Server, launch, make_tiny

HEADERS = {"X-API-Key": KEY}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    opened = launch(make_tiny(root / "tiny"), root / "a" / "b" / "state", "--max-length", "256")
    yield opened
    assert opened.stop() == 0


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def adapter(root: Path) -> dict[str, bytes]:
    """The two files of an adapter that loads."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    config = json.loads((root / "tiny" / "config.json").read_text())
    hidden = config["hidden_size"]
    heads = config.get("head_dim") or hidden // config["num_attention_heads"]
    tensors = {
        f"{prefix}.lora_A.weight": torch.ones(2, hidden),
        f"{prefix}.lora_B.weight": torch.ones(heads * config["num_attention_heads"], 2),
    }
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    return {
        "adapter_config.json": json.dumps(settings).encode(),
        "adapter_model.safetensors": save(tensors),
    }


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def imported(http: httpx.Client, body: bytes, name: str) -> httpx.Response:
    return http.post(f"/api/v1/import_adapter?name={name}", content=body)


def still_serves(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/completions", json={"model": http.base_url and "tiny", "prompt": [5], "max_tokens": 1}
    )
    assert answer.status_code in (200, 404)
    assert http.get("/v1/models").status_code == 200


@pytest.fixture(scope="module")
def good(http: httpx.Client, adapter: dict[str, bytes]) -> dict[str, Any]:
    answer = imported(http, packed(adapter), "good")
    assert answer.status_code == 200, answer.text
    loaded: dict[str, Any] = answer.json()
    return loaded


def test_folders_that_the_engine_makes_are_private(server: Server, root: Path) -> None:
    """Also the parents: the first command of a new user may be `engine serve`."""
    folders = (root / "a", root / "a" / "b", root / "a" / "b" / "state")
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


CLIMBING = [
    "../../x",
    "..",
    ".",
    "",
    "/tmp/x",
    "a/b",
    "a\\..\\b",
    "a\0b",
    "%2e%2e%2fx",
    ".hidden",
    "x" * 300,
    "-x",
]


@pytest.mark.parametrize("name", CLIMBING)
def test_no_name_leads_out_of_the_state_directory(
    http: httpx.Client, good: dict[str, Any], root: Path, name: str
) -> None:
    before = sorted(path for path in root.rglob("*") if "state" not in path.parts)
    copy = {"source_path": good["weights"], "session_id": name, "model_seq_id": 0}
    bodies = [copy, {**copy, "model_seq_id": -1}, {**copy, "source_path": f"tinker://{name}/weights/x"}]
    bodies.append({**copy, "source_path": f"tinker://good/weights/{name}"})
    for body in bodies if name else bodies[1:]:  # an empty session id is none at all
        assert 400 <= http.post("/api/v1/copy_weights", json=body).status_code < 500, body
    if "\0" not in name:
        assert (
            400 <= http.post("/api/v1/import_adapter", params={"name": name}, content=b"").status_code < 500
        )
    assert sorted(path for path in root.rglob("*") if "state" not in path.parts) == before
    still_serves(http)


def test_a_copy_with_a_plain_session_id_works(http: httpx.Client, good: dict[str, Any]) -> None:
    body = {"source_path": good["weights"], "session_id": "mine", "model_seq_id": 3}
    answer = http.post("/api/v1/copy_weights", json=body)
    assert answer.json() == {"tinker_path": "tinker://mine:train:3/weights/imported"}


@pytest.mark.parametrize(
    "stop",
    ["x" * 10_000, "ab" * 100_000, ["y" * 900] * 6, [str(n) for n in range(100)], ["z" * 1001]],
    ids=["10 kB", "200 kB", "six long", "a hundred", "one too long"],
)
def test_stop_texts_have_bounds(http: httpx.Client, stop: Any) -> None:
    model = http.get("/v1/models").json()["data"][0]["id"]
    bodies = {
        "/v1/completions": {"model": model, "prompt": [5], "max_tokens": 1, "stop": stop},
        "/v1/chat/completions": {
            "model": model,
            "messages": [{"role": "user", "content": "x"}],
            "stop": stop,
        },
        "/generate": {"input_ids": [5], "sampling_params": {"max_new_tokens": 1, "stop": stop}},
    }
    for path, body in bodies.items():
        assert http.post(path, json=body).status_code == 400, path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [[5]] * 2000, "n": 128}),
        ("/v1/completions", {"prompt": "a " * 100_000}),
        ("/v1/completions", {"prompt": ["a" * 1000] * 5000}),
        ("/v1/completions", {"prompt": [5], "stop_token_ids": list(range(100_000))}),
        ("/v1/completions", {"prompt": [10**30]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}),
        ("/generate", {"input_ids": [[5]] * 100, "sampling_params": {"n": 100}}),
        (
            "/api/v1/asample",
            {"sampling_session_id": "a:sample:" + "9" * 5000, "seq_id": 1, "prompt": {"chunks": []}},
        ),
        ("/api/v1/weights_info", {"tinker_path": "tinker://../../x/weights/y"}),
    ],
)
def test_a_request_without_measure_is_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    model = http.get("/v1/models").json()["data"][0]["id"]
    assert 400 <= http.post(path, json={"model": model, "max_tokens": 1, **body}).status_code < 500
    still_serves(http)


def test_numbers_of_many_digits_are_no_server_errors(http: httpx.Client) -> None:
    digits = "9" * 6000
    for path in (f"/api/v1/training_runs?offset={digits}", f"/api/v1/samplers/x:sample:{digits}"):
        assert 400 <= http.get(path).status_code < 500
    file = f"/api/v1/files/good/weights/imported/adapter_config.json?expires={digits}&token=x"
    assert http.get(file).status_code == 403


def test_a_large_json_body_is_refused_before_it_is_parsed(http: httpx.Client) -> None:
    assert http.post("/v1/completions", content=b" " * (65 << 20)).status_code == 413


def _sparse_tar(size: int) -> bytes:
    """A file of `size` bytes in old GNU form, of which nothing is stored."""
    info = tarfile.TarInfo("adapter_model.safetensors")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = b"S"
    header[386:398] = b"00000000000\0"
    header[398:410] = b"00000000000\0"
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def test_a_sparse_tar_writes_nothing(http: httpx.Client, tmp_path: Path) -> None:
    source = tmp_path / "sent.tar"
    source.write_bytes(_sparse_tar(3 << 30))
    with tarfile.open(source) as tar:
        assert tar.getmembers()[0].size == 3 << 30  # what the standard library would have written
    with pytest.raises(EngineUserError, match="sparse"):
        unpack(source, tmp_path, ["adapter_model.safetensors"])
    assert not (tmp_path / "adapter_model.safetensors").exists()
    assert imported(http, source.read_bytes(), "sparse").status_code == 400


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha_pattern": {"(a+)+$": 4, "(.*.*)*x": 3}},
        {"alpha_pattern": {"((((a|a)*)*)*)*b": 1}},
        {"alpha_pattern": {"(a|b)(?=x)": 1}},
        {"alpha_pattern": {"x" * 1000: 1}},
        {"alpha_pattern": {"[": 1}},
        {"alpha_pattern": ["q_proj"]},
        {"alpha_pattern": {"q_proj": "much"}},
        {"alpha_pattern": {"q_proj": 1e300}},
        {"lora_alpha": None},
        {"lora_alpha": "8"},
        {"lora_alpha": 1e400},
        {"lora_alpha": [8]},
        {"peft_type": ["LORA"]},
        {"bias": {}},
    ],
)
def test_a_hostile_configuration_is_a_client_error(
    http: httpx.Client, adapter: dict[str, bytes], settings: dict[str, Any]
) -> None:
    config = json.dumps({**json.loads(adapter["adapter_config.json"]), **settings}).encode()
    answer = imported(http, packed({**adapter, "adapter_config.json": config}), "bad")
    assert answer.status_code == 400, answer.text
    still_serves(http)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"null", b"[]", b'"x"', b"\xff\xfe", b"{}", b"9" * 5000])
def test_a_configuration_that_is_none_is_a_client_error(
    http: httpx.Client, adapter: dict[str, bytes], text: bytes
) -> None:
    assert imported(http, packed({**adapter, "adapter_config.json": text}), "bad").status_code == 400


def test_matrices_of_any_other_shape_or_value_are_a_client_error(
    http: httpx.Client, adapter: dict[str, bytes]
) -> None:
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    odd = [
        torch.tensor(1.0),
        torch.empty(0),
        torch.empty(0, 0),
        torch.ones(2),
        torch.ones(1, 1, 1),
        torch.full((2, 2), torch.nan),
        torch.full((2, 2), torch.inf),
        torch.ones(2, 2, dtype=torch.bool),
        torch.ones(2, 2, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.ones(2, 2).to(torch.float8_e4m3fn),
    ]
    for tensor in odd:
        for names in (("A",), ("B",), ("A", "B")):
            tensors = {f"{path}.lora_{name}.weight": tensor.clone() for name in names}
            files = {**adapter, "adapter_model.safetensors": save(tensors)}
            answer = imported(http, packed(files), "bad")
            assert answer.status_code == 400, (tensor, answer.text)
    long = {f"{path}{'.lora_A' * 500}.weight": torch.ones(1, 1)}
    files = {**adapter, "adapter_model.safetensors": save(long)}
    assert imported(http, packed(files), "bad").status_code == 400


def test_damaged_adapters_are_client_errors(http: httpx.Client, adapter: dict[str, bytes]) -> None:
    """Bytes changed, cut out, doubled and put in, in the files and in the archive around them."""
    chance = random.Random(18)
    whole = packed(adapter)
    for number in range(150):
        data = whole
        if number % 3 == 0:
            name = chance.choice(sorted(adapter))
            data = packed({**adapter, name: _damaged(adapter[name], chance)})
        else:
            data = _damaged(whole, chance)
        answer = imported(http, data, f"damaged{number}")
        assert answer.status_code in (200, 400), (number, answer.status_code, answer.text)
    still_serves(http)


def _damaged(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(min(len(damaged), 3000))
        match chance.randrange(4):
            case 0:
                damaged[at] = chance.randrange(256)
            case 1:
                del damaged[at : at + chance.randrange(1, 200)]
            case 2:
                damaged[at:at] = damaged[at : at + chance.randrange(1, 200)]
            case _:
                damaged[at : at + 8] = chance.randbytes(8)
    return bytes(damaged)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("q_proj", "model.layers.0.self_attn.q_proj", True),
        ("q_proj", "model.layers.0.self_attn.xq_proj", False),
        (r"model\.layers\.0\.self_attn\.q_proj", "model.layers.0.self_attn.q_proj", True),
        ("^model.layers.1.*", "model.layers.11.mlp.up_proj", True),
        ("^layers.1.*", "model.layers.1.mlp.up_proj", False),
        (r"layers\.\d+\.mlp\.(up|down)_proj$", "model.layers.12.mlp.down_proj", True),
        (r"layers\.[0-3]\.mlp.*", "model.layers.4.mlp.up_proj", False),
        (r".*\.(q_proj|k_proj)", "model.layers.4.attn.k_proj", True),
        ("q_proj|v_proj", "a.v_proj", True),
        ("lm_head", "lm_head", True),
        (".*" * 40 + "x", "a." * 60 + "y", False),
    ],
)
def test_module_patterns_mean_what_they_mean_to_peft(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_the_stop_table_is_the_one_of_its_definition() -> None:
    chance = random.Random(4)
    tokens = tuple(bytes(chance.choices(b"abc", k=chance.randrange(7))) for _ in range(400))
    vocabulary = Vocabulary(tokens)
    for _ in range(200):
        texts = tuple(
            bytes(chance.choices(b"abc", k=chance.randrange(1, 9))) for _ in range(chance.randrange(1, 4))
        )
        suffixes = tuple({text[start:] for text in texts for start in range(len(text))})
        expected = [token.startswith(suffixes) or any(text in token for text in texts) for token in tokens]
        assert np.array_equal(vocabulary.may_complete(texts), expected)
