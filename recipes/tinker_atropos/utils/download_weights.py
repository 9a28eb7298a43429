"""`python download_weights.py [RUN|tinker://…]` writes trained weights to ./checkpoints/<hash>/.

Without a name, the weights of the newest run are written; the folder is printed. It runs `hermes rl weights`.
"""

from hermes.cli.older import download_weights

if __name__ == "__main__":
    download_weights()
