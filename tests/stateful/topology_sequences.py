"""The random sequences of a machine of topologies: the weights of its actions, and the run of one sequence."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stateful.topology_machine import TopologyMachine
from support.sbf_fakes.topology_changes import Choice

FREQUENT = 5
"""The least weight of frequent actions."""
Actions = Mapping[Callable[[Any, Choice], None], int]
"""Actions of a machine, each with its weight in the random choice."""
ACTIONS: Actions = {
    TopologyMachine.change_topology: 5,
    TopologyMachine.request: 5,
    TopologyMachine.end: 3,
    TopologyMachine.settle: 2,
    TopologyMachine.converge: 1,
    TopologyMachine.converge_during_another_action: 7,
    TopologyMachine.run_an_agent: 1,
    TopologyMachine.change_a_pool: 1,
    TopologyMachine.clean_a_vlan: 1,
    TopologyMachine.use_a_port_for_something_else: 3,
    TopologyMachine.create_or_delete_a_vlan: 2,
    TopologyMachine.replace_a_device: 1,
    TopologyMachine.remove_a_device: 2,
    TopologyMachine.declare_an_element_clean: 1,
    TopologyMachine.begin_or_end_a_fault: 3,
    TopologyMachine.converge_during_a_replacement: 2,
    TopologyMachine.converge_during_a_takeover: 3,
    TopologyMachine.lose_a_device_and_change_its_site: 4,
    TopologyMachine.restart_a_device: 1,
    TopologyMachine.stop_or_start_an_agent: 1,
    TopologyMachine.restart_the_service: 1,
    TopologyMachine.let_time_pass: 1,
}


def choose_weights(choose: Choice, actions: Actions) -> Actions:
    """Return the weights of the actions in one sequence. Some actions are missing, and some are frequent.

    Sequences of few kinds of actions find faults that are rare in a mixture of all actions (swarm testing).
    """
    weights = {
        action: weight * choose.choice((1, 1, 2) if weight >= FREQUENT else (0, 1, 1, 2))
        for action, weight in actions.items()
    }
    return weights | {TopologyMachine.settle: max(weights[TopologyMachine.settle], 2)}


def run(machine: TopologyMachine, seed: int, steps: Iterable[int], actions: Actions = ACTIONS) -> None:
    """Take random steps, and check the invariants after each step. A step's number determines its random choices."""
    weights = choose_weights(Choice(f"{seed}"), actions)
    try:
        machine.choose_world(Choice(f"{seed} world"))
        for number in steps:
            choose = Choice(f"{seed} {number}")
            (action,) = choose.choices(list(weights), list(weights.values()))
            action(machine, choose)
            machine.all_invariants_hold()
        machine.without_faults_everything_is_reached_and_ends()
    finally:
        machine.world.close()
