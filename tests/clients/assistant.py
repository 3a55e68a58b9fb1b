"""`tidegate mcp`, asked by the Python client of the Model Context Protocol."""

import asyncio
import json

from mcp import ClientSession, StdioServerParameters, stdio_client
from server import Site, expect


def assistant_asks(site: Site) -> str:
    return asyncio.run(asks(site))


async def asks(site: Site) -> str:
    command = StdioServerParameters(command=str(site.tidegate), args=["mcp", "--data", str(site.data)])
    async with stdio_client(command) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
        began = await session.initialize()
        assert "gpu_ms" in began.instructions, began
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        expect(sorted(tools), ["ask", "describe", "explain_decision", "explain_job", "questions"])

        async def call(name: str, **arguments):
            result = await session.call_tool(name, arguments)
            return result.is_error, result.content[0].text

        failed, rows = await call("ask", sql="SELECT job_id, gpus_milli FROM jobs ORDER BY job_id LIMIT 2")
        expect((failed, json.loads(rows)), (False, [{"job_id": "1", "gpus_milli": 1000}, {"job_id": "2", "gpus_milli": 8000}]))
        failed, found = await call("questions", about="gpu hours team")
        assert not failed and json.loads(found)["questions"], found
        failed, columns = await call("describe", table="jobs")
        assert not failed and "gpu_ms_held" in columns, columns
        failed, why = await call("explain_job", job="2")
        expect((failed, json.loads(why)["state"]), (False, "ended"))
        for name, arguments, said in (
            ("ask", {"sql": "DROP TABLE jobs"}, "queries only read"),
            ("ask", {"sql": "SELECT value FROM generate_series(1, 1000)"}, "more than 200 rows"),
            ("ask", {}, "is missing"),
            ("explain_job", {"job": "no such job"}, "no such job"),
            ("explain_decision", {"action": "no-such-action"}, "no-such-action"),
        ):
            failed, why = await call(name, **arguments)
            assert failed and said in why, f"{name} {arguments}: {why}"
    return f"{len(tools)} tools, failures told as results"
