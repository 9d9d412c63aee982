"""Neural layers that methods share; they know neither tasks nor methods."""
