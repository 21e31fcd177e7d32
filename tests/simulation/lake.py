"""Starts the writers of tables in a run: pipeline drivers and external engines."""

from tests.simulation.external_engine import Engine
from tests.simulation.pipeline import Pipeline
from tests.simulation.world import World


def start_pipelines(world: World) -> None:
    for index in range(world.scenario.pipelines):
        world.start(world.pipelines, index, "pipeline", lambda host: Pipeline(world, host).run())
    for index in range(world.scenario.engines):
        world.start(world.engines, index, "engine", lambda host: Engine(world, host).run())
