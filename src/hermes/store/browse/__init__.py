"""Reading for a person who browses: pages of a long list, windows of a long transcript, newest matches first.

Every query here is bounded: it reads about one page, however large the store is.
"""
