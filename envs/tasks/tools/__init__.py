"""Tools that policies call in tasks: Python functions, the sandbox and MCP servers. See docs/tools.md."""

from envs.tasks.tools.functions import Functions, tool
from envs.tasks.tools.limits import Limits, ToolFailed, ToolUse
from envs.tasks.tools.mcp_server import McpServer
from envs.tasks.tools.python import Python
from envs.tasks.tools.tools import Combined, ToolError, Tools, ToolTimeout

__all__ = [
    "Combined",
    "Functions",
    "Limits",
    "McpServer",
    "Python",
    "ToolError",
    "ToolFailed",
    "ToolTimeout",
    "ToolUse",
    "Tools",
    "tool",
]
