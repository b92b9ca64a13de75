"""A program: roles wired by channels as plain data, validated and counted before it runs; and its pictures."""

from shoal.program.program import Program as Program, held as held
from shoal.program.wiring import Channel as Channel, Port as Port, RoleSpec as RoleSpec
