"""The operations of the HTTP API, one module per resource. Each module has one or more routers."""
