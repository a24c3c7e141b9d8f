"""WebShop: a shop in text, whose reward says how well the bought product fits an instruction (Yao et al., 2022)."""
