"""The gateway's HTTP client over real TLS: whom it trusts, through a proxy, and answers without a body."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hermes.errors import ProviderError
from hermes.gateway.http_client import HttpClient

HOST = "provider.test"
"""Only the proxy of these tests knows where it is."""
PARTS = [b"data: %d\n\n" % number for number in range(50)]


@dataclass
class Provider:
    port: int
    heads: list[str] = field(default_factory=list)
    """The first line of every request."""
    connections: int = 0


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own authority, for HOST and this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(HOST), x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path


@asynccontextmanager
async def provider(folder: Path) -> AsyncIterator[Provider]:
    """Streams PARTS to a POST, and answers a HEAD with the length of what it does not send."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*write_certificate(folder))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await respond(reader, writer)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            state.heads.append(head.split(b"\r\n")[0].decode())
            if head.startswith(b"HEAD"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                await writer.drain()
                continue
            length = next(
                int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
            )
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in PARTS:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    state = Provider(server.sockets[0].getsockname()[1])
    async with server:
        yield state


@asynccontextmanager
async def proxy(target_port: int, answer: bytes = b"200 OK") -> AsyncIterator[tuple[int, list[str]]]:
    """A proxy that leads every CONNECT to the provider; its port, and what was asked of it."""
    asked_lines: list[str] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.1 %s\r\n\r\n" % answer)
        if answer == b"200 OK":
            upstream = await asyncio.open_connection("127.0.0.1", target_port)
            await asyncio.gather(copy(reader, upstream[1]), copy(upstream[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked_lines


async def read(client: HttpClient, url: str, method: str = "POST", content: bytes = b"{}") -> bytes:
    response = await client.send(method, url, [(b"accept", b"*/*")], content)
    try:
        assert response.status == 200
        return b"".join([part async for part in response.body()])
    finally:
        response.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


async def test_a_stream_over_tls_arrives_whole_and_its_connection_is_used_again(folder: Path) -> None:
    async with provider(folder) as server:
        client = HttpClient(5)
        for _ in range(3):
            assert await read(client, f"https://localhost:{server.port}/v1/messages") == b"".join(PARTS)
        client.close()
    assert server.connections == 1


async def test_an_authority_that_nobody_trusts_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with provider(folder) as server:
        with pytest.raises(ProviderError, match=r"cannot be reached.*certificate"):
            await read(HttpClient(5), f"https://localhost:{server.port}/v1/messages")
    assert server.heads == []


async def test_a_certificate_of_another_host_is_refused(folder: Path) -> None:
    async with provider(folder) as server:
        with pytest.raises(ProviderError, match="cannot be reached"):
            await read(HttpClient(5), f"https://127.0.0.2:{server.port}/v1/messages")
    assert server.heads == []


async def test_a_proxy_leads_to_the_provider_and_its_refusal_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider(folder) as server, proxy(server.port) as (port, asked_lines):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        client = HttpClient(5)
        for _ in range(2):
            assert await read(client, f"https://{HOST}/v1/messages") == b"".join(PARTS)
        client.close()
        assert asked_lines == [f"CONNECT {HOST}:443 HTTP/1.1"]
        assert server.heads == ["POST /v1/messages HTTP/1.1"] * 2
    async with proxy(0, answer=b"407 Proxy Authentication Required") as (port, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(ProviderError, match="the proxy refuses with 407"):
            await read(HttpClient(5), f"https://{HOST}/v1/messages")


async def test_the_answer_to_a_head_has_no_body_whatever_length_it_names(folder: Path) -> None:
    async with provider(folder) as server:
        client = HttpClient(5)
        url = f"https://localhost:{server.port}/v1/models"
        assert await read(client, url, "HEAD", b"") == b""
        assert await read(client, url) == b"".join(PARTS)
        client.close()
