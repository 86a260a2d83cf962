"""The published MCP servers whose tools are collected, with the settings that they need to start.

Keys and addresses are made up: nothing is asked of anybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FAKE = "0123456789abcdef0123456789abcdef"
URL = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Server:
    """An npm package, as npm installs it: NAME@VERSION."""

    spec: str
    arguments: tuple[str, ...] = ()  # HOME is the server's empty home
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""  # if its name is not the package's

    @property
    def package(self) -> str:
        """Return the package without its version."""
        return self.spec.rpartition("@")[0]

    @property
    def version(self) -> str:
        """Return the version of the package."""
        return self.spec.rpartition("@")[2]

    @property
    def name(self) -> str:
        """Return a file name for its list of tools."""
        return self.package.removeprefix("@").replace("/", "-")


SERVERS = (
    Server("@modelcontextprotocol/server-filesystem@2026.8.31", ("HOME",)),
    Server("@modelcontextprotocol/server-memory@2026.8.31"),
    Server("@modelcontextprotocol/server-everything@2026.8.31"),
    Server("@modelcontextprotocol/server-sequential-thinking@2026.8.31"),
    Server(
        "@modelcontextprotocol/server-github@2025.4.8",
        environment={"GITHUB_PERSONAL_ACCESS_TOKEN": FAKE},
    ),
    Server(
        "@modelcontextprotocol/server-gitlab@2025.4.25",
        environment={"GITLAB_PERSONAL_ACCESS_TOKEN": FAKE},
    ),
    Server(
        "@modelcontextprotocol/server-google-maps@0.6.2",
        environment={"GOOGLE_MAPS_API_KEY": FAKE},
    ),
    Server(
        "@modelcontextprotocol/server-slack@2025.4.25",
        environment={"SLACK_BOT_TOKEN": FAKE, "SLACK_TEAM_ID": "T0"},
    ),
    Server("@modelcontextprotocol/server-puppeteer@2025.5.12"),
    Server("@playwright/mcp@0.0.83"),
    Server("chrome-devtools-mcp@1.11.0"),
    Server("firecrawl-mcp@3.26.0", environment={"FIRECRAWL_API_KEY": FAKE}),
    Server("@antv/mcp-server-chart@0.9.10"),
    Server("@zereight/mcp-gitlab@2.1.64", environment={"GITLAB_PERSONAL_ACCESS_TOKEN": FAKE}),
    Server("mcp-server-kubernetes@4.1.7"),
    Server("@notionhq/notion-mcp-server@2.5.2", environment={"NOTION_TOKEN": f"ntn_{FAKE}"}),
    Server("@upstash/context7-mcp@4.1.1"),
    Server("@wonderwhy-er/desktop-commander@0.2.52"),
    Server("tavily-mcp@0.2.22", environment={"TAVILY_API_KEY": FAKE}),
    Server("exa-mcp-server@3.4.1", environment={"EXA_API_KEY": FAKE}),
    Server("figma-developer-mcp@0.13.2", ("--stdio",), environment={"FIGMA_API_KEY": FAKE}),
    Server("mongodb-mcp-server@3.0.4", environment={"MDB_MCP_TELEMETRY": "disabled"}),
    Server("@brave/brave-search-mcp-server@2.1.4", environment={"BRAVE_API_KEY": FAKE}),
    Server("airtable-mcp-server@1.14.0", environment={"AIRTABLE_API_KEY": FAKE}),
    Server("@circleci/mcp-server-circleci@0.20.0", environment={"CIRCLECI_TOKEN": FAKE}),
    Server(
        "@winor30/mcp-server-datadog@1.8.0",
        environment={"DATADOG_API_KEY": FAKE, "DATADOG_APP_KEY": FAKE},
    ),
    Server("@eslint/mcp@0.3.13"),
    Server("@mobilenext/mobile-mcp@1.0.4"),
    Server("@cyanheads/git-mcp-server@2.15.3"),
    Server("@hubspot/mcp-server@0.4.0", environment={"PRIVATE_APP_ACCESS_TOKEN": FAKE}),
    Server("@sentry/mcp-server@0.39.0", environment={"SENTRY_ACCESS_TOKEN": FAKE}),
    Server("@roychri/mcp-server-asana@1.8.0", environment={"ASANA_ACCESS_TOKEN": FAKE}),
    Server("n8n-mcp@2.87.0", environment={"N8N_API_URL": URL, "N8N_API_KEY": FAKE}),
    Server("@larksuiteoapi/lark-mcp@0.5.1", ("mcp", "-a", "cli_x", "-s", FAKE)),
)
