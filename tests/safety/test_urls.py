"""Which addresses count as public, and which URLs are refused before anything is resolved."""

from __future__ import annotations

import pytest

from hermes.errors import ToolError
from hermes.safety.urls import check_url, is_public, parse_url


@pytest.mark.parametrize(
    "ip",
    [
        "8.8.8.8",
        "1.1.1.1",
        "93.184.215.14",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_public(ip: str) -> None:
    assert is_public(ip)


@pytest.mark.parametrize(
    "ip",
    [
        *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
        *(
            "192.168.1.1",
            "169.254.169.254",
            "169.254.170.2",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
        ),
        *("192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::127.0.0.1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1"),
        *("2001:db8::1", "2001::1", "2001:10::1", "3fff::1", "5f00::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1"),
        *("64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
        *("2001:4860::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1"),
        *("fe80::1%eth0", "not an address", ""),
    ],
)
def test_everything_else_is_not(ip: str) -> None:
    assert not is_public(ip)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com",
            "javascript:alert(1)",
            "data:,x",
        ),
        *(
            "http:///path",
            "http://",
            "//example.com",
            "example.com",
            "",
            "http://:80/",
            "http://[::1",
            "http://[x]/",
        ),
        *("http://user@example.com/", "http://user:pw@example.com/", "http://@example.com/"),
        *(
            "http://exa mple.com/",
            "http://example.com/\r\nX: y",
            "http://example.com\\@127.0.0.1/",
            "http://a\tb.com",
        ),
        *(
            "http://example.com:0/",
            "http://example.com:99999/",
            "http://example.com:x/",
            "http://[fe80::1%25eth0]/",
        ),
        "http://" + "a" * 10_000,
    ],
)
def test_what_is_no_plain_web_address_is_refused_unresolved(url: str) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise AssertionError("resolved")

    with pytest.raises(ToolError) as refusal:
        check_url(url, resolve=resolve)
    assert refusal.value.kind == "refused"


def test_the_checked_addresses_come_back_with_the_port() -> None:
    both = ["8.8.8.8", "2606:4700::1111", "8.8.8.8"]
    assert check_url("https://example.com/x", resolve=lambda h, p: both) == [
        ("8.8.8.8", 443),
        ("2606:4700::1111", 443),
    ]
    assert check_url("http://example.com:8080", resolve=lambda h, p: ["8.8.8.8"]) == [("8.8.8.8", 8080)]


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    with pytest.raises(ToolError, match=r"10\.0\.0\.1"):
        check_url("http://example.com", resolve=lambda h, p: ["8.8.8.8", "10.0.0.1"])


def test_hosts_are_exempt_by_name_or_by_name_and_port() -> None:
    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    for allowed in ("localhost", "LOCALHOST", "localhost:8080"):
        assert check_url("http://LocalHost.:8080/", [allowed], resolve) == [("127.0.0.1", 8080)]
    for other in ("localhost:80", "local", "localhost.example", "127.0.0.1", "*"):
        with pytest.raises(ToolError):
            check_url("http://localhost:8080/", [other], resolve)
    assert check_url("http://[::1]:8080/", ["[::1]:8080"], lambda h, p: ["::1"]) == [("::1", 8080)]


def test_a_host_that_does_not_resolve_is_a_failure_not_a_refusal() -> None:
    def nowhere(host: str, port: int) -> list[str]:
        raise OSError("unknown name")

    for resolve in (nowhere, lambda h, p: []):
        with pytest.raises(ToolError) as failure:
            check_url("http://example.com", resolve=resolve)
        assert failure.value.kind == "failed"


def test_international_names_are_read_as_the_resolver_reads_them() -> None:
    assert parse_url("http://bücher.example/").host == "xn--bcher-kva.example"
    assert parse_url("http://①②⑦.⓪.⓪.①/").host == "127.0.0.1"
