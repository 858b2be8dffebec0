"""The environment script that Alembic runs.

The connection that ``sbf_service.store.maintenance.alembic_upgrade`` passes is already in a transaction.
"""

from alembic import context

from sbf_service.store.tables import (  # noqa: F401 - their tables join the metadata of Base
    cluster_tables,
    gateway_tables,
    guest_tables,
    service_tables,
    ssh_tables,
    user_tables,
    vlan_tables,
    vpn_tables,
)
from sbf_service.store.tables.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
)
context.run_migrations()
