"""An MCP server with one tool, which does nothing. The argument is the port; without one it speaks on standard input and output."""

import sys

from mcp.server.fastmcp import FastMCP

port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
server = FastMCP("noop", port=port, stateless_http=True, json_response=True, log_level="ERROR")


@server.tool()
def noop(error_text: str) -> str:
    """Does nothing."""
    return "done"


server.run(transport="streamable-http" if port else "stdio")
