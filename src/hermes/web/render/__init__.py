"""From recorded data to what a page shows. Pure: nothing here reads the store or the request."""
