"""The host level: pages of rows in memory or in a file, held by requests, counted to the page."""

from hisparse.host.pool import HostPool
from hisparse.host.request import RequestPages

__all__ = ["HostPool", "RequestPages"]
