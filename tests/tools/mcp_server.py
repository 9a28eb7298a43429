"""A small MCP server for the tests, made with the SDK's own server class.

Run as a program: `python mcp_server.py stdio`, or `python mcp_server.py http`, which prints its address. The
variable GLAZE_DESCRIPTION changes what it says of one of its tools.
"""

from __future__ import annotations

import base64
import os
import socket
import sys

from mcp.server import MCPServer
from mcp_types import ImageContent, TextContent

server = MCPServer("pottery")


@server.tool(description=os.environ.get("GLAZE_DESCRIPTION", "Names the glaze of a colour."))
def glaze(colour: str) -> str:
    return {"blue": "cobalt", "green": "celadon"}[colour]


@server.tool()
def environment() -> list[str]:
    """The names of the variables the server sees."""
    return sorted(os.environ)


@server.tool(structured_output=False)
def picture() -> list[TextContent | ImageContent]:
    """A picture with a caption."""
    gif = base64.b64encode(b"GIF89a" + bytes(20)).decode()
    return [
        TextContent(text="a vase"),
        ImageContent(data=gif, mime_type="image/png"),
        ImageContent(data="PHN2Zy8+", mime_type="image/svg+xml"),
    ]


@server.tool()
def die() -> str:
    """Ends the server in the middle of a call."""
    os._exit(3)


@server.tool(name="kiln.fire")
def fire(degrees: int) -> int:
    """Fires the kiln."""
    return degrees


def serve_http() -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    print("\x1b[31mpottery is open\x1b[0m", file=sys.stderr, flush=True)
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        serve_http()
